"""`lifecycle`: whole lives a second: create, run /bin/true, stop, everything given back.

Ours: through the SDK, 16 in flight from this one process. crun and docker: `run` of the same command, 16 in flight. The
floor: the C program in as many parallel loops as there are cores. Each takes its turn for a burst of lives; a rate is
the lives of all bursts over their time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import msgspec

from libdsec import DSecClient, DSecContainerRunArgs

from . import peers
from .figures import Figure, Report, of_rate, report
from .ground import Ground
from .machine import machine
from .native import Turns
from .rounds import SETTLE_S, Progress

NAME = "lifecycle"
SAMPLES = 2400
IN_FLIGHT = 16
ROUNDS = 10
COMMAND = ("/bin/true",)


class _Rate(msgspec.Struct):
    burst: Callable[[int], Awaitable[float]]
    """Seconds that so many lives took."""
    share: float
    lives: int = 0
    seconds: float = 0.0

    async def turn(self, lives: int) -> None:
        count = max(IN_FLIGHT, round(lives * self.share / IN_FLIGHT) * IN_FLIGHT)
        self.seconds += await self.burst(count)
        self.lives += count

    def figure(self) -> Figure:
        return of_rate(self.lives, self.seconds)


def lives_of(client: DSecClient, image: str) -> Callable[[int], Awaitable[float]]:
    """Of a node: what takes a number of lives and gives the seconds that they took."""
    args = DSecContainerRunArgs(container_image=image)

    async def lives(count: int) -> None:
        for _ in range(count):
            async with await client.run_container(args) as sandbox:
                (await sandbox.run(COMMAND)).check()

    async def burst(count: int) -> float:
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(lives(count // IN_FLIGHT))
        return time.perf_counter() - begin

    return burst


def _timed(run: Callable[[int], Awaitable[Turns]], loops: int) -> Callable[[int], Awaitable[float]]:
    async def burst(count: int) -> float:
        return (await run(max(1, count // loops))).elapsed_s * count / (max(1, count // loops) * loops)

    return burst


def _peer(ground: Ground, peer: peers.Peer) -> Callable[[int], Awaitable[float]]:
    async def run(count: int) -> Turns:
        return await ground.native.spawn(peer.run(COMMAND), count, IN_FLIGHT, peer.wrap)

    return _timed(run, IN_FLIGHT)


def _floor(ground: Ground) -> Callable[[int], Awaitable[float]]:
    cores = len(os.sched_getaffinity(0))

    async def run(count: int) -> Turns:
        return await ground.native.floor_lifecycle(count, cores, COMMAND)

    return _timed(run, cores)


async def measure(ground: Ground, samples: int, progress: Progress) -> Report:
    async with (
        ground.node.running() as client,
        peers.peers(("crun", "docker"), ground.directory / NAME, ground.lower) as found,
    ):
        rates = {"ours": _Rate(lives_of(client, ground.image), 1.0), "floor": _Rate(_floor(ground), 1.0)}
        for name, peer in found.items():
            if peer is not None:
                rates[name] = _Rate(_peer(ground, peer), peer.share / 2)
        for rate in rates.values():
            await rate.burst(IN_FLIGHT)
        for number in range(ROUNDS):
            for index, (name, rate) in enumerate(rates.items()):
                progress(number * len(rates) + index, ROUNDS * len(rates), name)
                await asyncio.sleep(SETTLE_S)
                await rate.turn(samples // ROUNDS)
    others: dict[str, Figure | None] = {name: rates[name].figure() if name in rates else None for name in found}
    return report(NAME, machine(ground.load), rates["ours"].figure(), others, rates["floor"].figure())
