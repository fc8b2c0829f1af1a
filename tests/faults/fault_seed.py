"""One seed: a program runs, its victim dies, whoever died is started again, and then everything is looked at."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from random import Random

import fault_checks as checks
from fault_node import FaultNode
from fault_points import ALLOWED, FAILED, REPLACED, RESTART, Victim, victims
from fault_program import Kind, Notes, Program

from libdsec import DSecClient
from libdsec.errors import LeaseLostError
from libdsec.rollout import Rollout

LONGEST_S = 30.0
"""Of one seed, ten times what a slow one takes."""

RECONNECT_S = 30.0
STRIKE_AFTER_S = 0.015
"""After a step has begun, at most: as long as a step takes."""

MOST_STARTS = 6


class Seed:
    def __init__(self, node: FaultNode, seed: int) -> None:
        self._node = node
        everyone = victims()
        self._random = Random(f"victim {seed}")
        self.victim: Victim = everyone[seed % len(everyone)]
        first = seed < len(everyone)
        hung = self.victim.kind == "hung fork server"
        # two programs at once are kept apart by a rollout's lease, and by nothing on a sandbox beside it
        safe = not ALLOWED[self.victim.kind][0] and self.victim.kind != "fenced client"
        self._kind = Kind(seed, first, safe, 1.0 if hung else 20.0)
        self._must_hit = first and self.victim.point != ""
        self._fault = (
            self.victim.point and f"{self.victim.point}:{1 if first else self._random.choice((1, 1, 2, 3, 5))}"
        )
        self._name = f"seed-{seed}-{node.starts}"
        self.notes = Notes()
        self.wrong: list[str] = []
        self._steps = 0
        self._strike_at = self._random.randint(1, 12)
        self._strikes = not self.victim.point or self.victim.how in (RESTART, REPLACED)
        self._striking: asyncio.Task[None] | None = None
        self._client_dies = asyncio.Event()
        self._next_fault = ""
        self._killed_servers: set[int] = set()
        self._killed_fork_servers: set[int | None] = set()
        self.hit = False

    async def run(self) -> None:
        """:raises AssertionError: what did not hold."""
        async with asyncio.timeout(LONGEST_S):
            await self._prepare()
            async with self._supervised():
                await self._play(stop=False)
                found = checks.read_counters(self._node, self.notes)
                self.wrong += checks.counters(self.notes, found)
                await self._replay(stop=False)
                self._same_counters(found)
                await self._play(stop=True)
                await self._struck()
                steps = await self._replay(stop=True)
            self._see_hit()
            await self._finish(steps)
        self.wrong += checks.outcomes(self.notes, self.victim)
        if self._must_hit and not self.hit:
            self.wrong.append(f"nothing passed {self.victim.point}")
        assert not self.wrong, "\n".join([f"{self.victim} (seed {self._kind.seed}):", *self.wrong])

    async def _prepare(self) -> None:
        """The server and the fork server that the victim wants; a server that need not be another one goes on."""
        node, victim = self._node, self.victim
        if victim.point.startswith("edge:") and victim.how == RESTART:
            self._next_fault = self._fault
        elif victim.point:
            self._kill_server()
            if victim.point.startswith("aether:") and victim.how != REPLACED:
                self._kill_fork_server()
            node.start(self._fault)
        await node.serving()
        self._server = node.process.pid if node.process else 0
        self._descriptors = checks.descriptors(node)
        self._fork_server = node.fork_server()

    @contextlib.asynccontextmanager
    async def _supervised(self) -> AsyncIterator[None]:
        """A server that dies is followed by another one."""
        starts = self._node.starts

        async def watch() -> None:
            while True:
                assert self._node.process is not None
                await self._node.process.ended()
                if self._node.process.pid not in self._killed_servers and self.victim.point.startswith("edge:"):
                    self.hit = True
                assert self._node.starts - starts < MOST_STARTS, f"servers do not stay: {self._node.log()[-3000:]}"
                self._node.start(self._next_fault)
                self._next_fault = ""

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            if not watching.cancelled():
                watching.result()

    async def _play(self, *, stop: bool) -> None:
        """Run the program from the top until it has come to its end."""
        if stop and self.victim.stopping:
            self._steps, self._strike_at = 0, 1
        while not await self._live(stop):
            pass

    async def _live(self, stop: bool) -> bool:
        """One life of the program. False: it died before its end."""
        client = await self._connect()
        rollout = await client.attach(self._name)
        program = asyncio.create_task(
            Program(client, rollout, self._kind, self.notes, lambda name: self._on_step(name, stop)).run(stop=stop)
        )
        dying = asyncio.create_task(self._client_dies.wait())
        try:
            await asyncio.wait([program, dying], return_when=asyncio.FIRST_COMPLETED)
            if not self._client_dies.is_set():
                program.result()
                await (rollout.release() if self._random.random() < 0.5 else rollout.close())
                return True
            self._client_dies.clear()
            if self.victim.kind == "fenced client":
                return await self._fenced(program, stop)
            lose(client)
            return False
        finally:
            dying.cancel()
            program.cancel()
            await asyncio.wait([program, dying])
            await rollout.close()
            await client.close()

    async def _fenced(self, program: asyncio.Task[None], stop: bool) -> bool:
        """Another program takes the lease while this one runs, which comes no further; the other one to its end."""
        client = await self._connect()
        successor = await client.attach(self._name)
        try:
            await Program(client, successor, self._kind, self.notes, lambda _: None).run(stop=stop)
            with contextlib.suppress(LeaseLostError):
                await program  # if its last call was before, it ends well
        finally:
            await successor.close()
            await client.close()
        return True

    async def _replay(self, *, stop: bool) -> int:
        """From the top again: everything is recorded, and nothing runs. How many steps there are."""
        begun = dict(self.notes.begun)
        client = await self._connect()
        try:
            before, _ = await checks.log_counts(self._node, client, self._name)
            rollout: Rollout = await client.attach(self._name)
            await Program(client, rollout, self._kind, self.notes, lambda _: None).run(stop=stop)
            self.wrong += await checks.failures(client, self.notes, self.victim)
            await rollout.release()
            after, _ = await checks.log_counts(self._node, client, self._name)
        finally:
            await client.close()
        if after != before:
            self.wrong.append(f"{after - before} steps ran when all were recorded")
        if fresh := self.notes.begun.keys() - begun.keys():
            self.wrong.append(f"the program went another way when it ran again: {sorted(fresh)}")
        return after

    def _same_counters(self, found: dict[str, list[str]]) -> None:
        now = checks.read_counters(self._node, self.notes)
        if ALLOWED[self.victim.kind][0] >= FAILED:  # the upper of one that has failed goes at some moment
            found = {name: tokens for name, tokens in found.items() if name in now}
        if now != found:
            self.wrong.append(f"a program that was answered from the log changed the counters {found} to {now}")

    async def _connect(self) -> DSecClient:
        """The first connection of a client is one attempt; the server may be dying at this moment."""
        client = DSecClient(f"unix://{self._node.socket}", reconnect_timeout=RECONNECT_S)
        while True:
            await self._node.serving()
            with contextlib.suppress(Exception):
                return await client.open()
            await asyncio.sleep(0.005)

    def _on_step(self, name: str, stop: bool) -> None:
        if self.victim.stopping and not name.endswith(".stop"):
            return
        self._steps += 1
        if self._strikes and self._steps == self._strike_at and (stop or not self.victim.stopping):
            self._striking = asyncio.create_task(self._strike(self._random.uniform(0, STRIKE_AFTER_S)))

    async def _strike(self, delay: float) -> None:
        await asyncio.sleep(delay)
        kind = self.victim.kind
        if kind.endswith("client"):
            self._client_dies.set()
        elif kind == "hung fork server":
            self._killed_fork_servers.add(self._node.kill_fork_server(signal.SIGSTOP))
        elif self.victim.how == RESTART or kind == "edge":
            self._kill_server()
        elif kind == "edge twice":
            self._kill_server()
            await asyncio.sleep(self._random.uniform(0.01, 0.12))
            self._kill_server()
        elif kind == "fork server":
            self._kill_fork_server()
        elif kind == "edge and fork server":
            self._kill_server()
            self._kill_fork_server()
        elif inits := self._node.inits():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(inits), signal.SIGKILL)

    async def _struck(self) -> None:
        if self._striking is not None:
            await self._striking

    def _kill_server(self) -> None:
        process = self._node.process
        assert process is not None
        self._killed_servers.add(process.pid)
        self._node.crash()

    def _kill_fork_server(self) -> None:
        self._killed_fork_servers.add(self._node.kill_fork_server())

    def _see_hit(self) -> None:
        if self.victim.point.startswith("aether:fork_server"):
            self.hit = self._node.fork_server() != self._fork_server and (
                self.victim.how == REPLACED or self._fork_server not in self._killed_fork_servers
            )
        elif self.victim.point.startswith("aether:init"):
            self.hit = any(outcome[0] == "error" for outcome in self.notes.acknowledged.values())

    async def _finish(self, steps: int) -> None:
        """With a server and a fork server that wish nothing, look whether anything is left."""
        node = self._node
        if self.victim.point.startswith("edge:") and not self.hit:
            self._kill_server()
            node.start()
        if self.victim.point.startswith("aether:"):
            self._kill_fork_server()
        client = await self._connect()
        try:
            await checks.works(client)
            counted, running = await checks.log_counts(node, client, self._name)
        finally:
            await client.close()
        self.wrong += await checks.nothing_left(node)
        if node.process is not None and node.process.pid == self._server:
            self.wrong += await checks.no_more_descriptors(node, self._descriptors)
        if running:
            self.wrong.append(f"{running} steps are said to run in the log")
        if counted != steps:
            self.wrong.append(f"the log has {counted} steps and had {steps}")


def lose(client: DSecClient) -> None:
    """As the end of the client's process would: not a byte goes out any more."""
    connection = client._channel._connection
    if connection is not None and connection._transport is not None:
        connection._transport.abort()
