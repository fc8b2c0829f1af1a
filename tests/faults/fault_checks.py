"""What must hold after a seed: nothing acknowledged is missing, nothing ran twice, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fault_node import FaultNode
from fault_points import ALLOWED, CUT_SHORT, FAILED, NOTHING, Victim
from fault_program import COUNTER, Notes
from node_process import mounts_naming

from libdsec import DSecClient, DSecContainerRunArgs
from libdsec.errors import UnavailableError
from libdsec.log import CommandLog
from libdsec.protocol.calls import SandboxRequest
from libdsec.protocol.spec import SandboxInfo

CONNECTIONS = 4
"""To the journal's file, at most: one that writes, two that read in threads, one that reads on the loop."""

SETTLE_S = 10.0
"""For what goes in the background."""


def outcomes(notes: Notes, victim: Victim) -> Iterator[str]:
    """Results are those of an undisturbed run (the program has looked), errors those that this victim may cause."""
    yield from notes.wrong
    stay, again = ALLOWED[victim.kind]
    for name, outcome in notes.acknowledged.items():
        may = stay | CUT_SHORT.get(victim.kind, NOTHING) if name in notes.fed else stay
        if outcome[0] == "error" and outcome[1] not in may:
            yield f"{name} ended with {outcome[1:]}, which the death of {victim.kind} does not allow"
    for name, code in notes.retried:
        if code not in again:
            yield f"{name} had to be asked for again after {code}, which the death of {victim.kind} does not allow"


def read_counters(node: FaultNode, notes: Notes) -> dict[str, list[str]]:
    """The counter files of sandboxes that live, as they are on the host."""
    found: dict[str, list[str]] = {}
    for name, sandbox in notes.sandboxes.items():
        upper = node.upper(sandbox)
        if upper is not None:
            with contextlib.suppress(FileNotFoundError):
                found[name] = (upper / COUNTER[1:]).read_text().splitlines()
    return found


def counters(notes: Notes, found: dict[str, list[str]]) -> Iterator[str]:
    """Each acknowledged token once, each other one at most once, in an order that the program can have made."""
    for name, tokens in found.items():
        known = notes.tokens.get(name, set())
        times = Counter(tokens)
        for token in times.keys() - known:
            yield f"the counter of {name} has {token!r}, which nobody has written"
        for token in known:
            least = 1 if notes.acknowledged.get(token, ("",))[0] == "result" else 0
            if not least <= times[token] <= 1:
                yield f"{token} ran {times[token]} times, and was told {notes.acknowledged.get(token)}"
        parts = [int(token.split(".")[1]) for token in tokens if token in known]
        if parts != sorted(parts):
            yield f"the counter of {name} is out of order: {tokens}"
        read = notes.acknowledged.get(f"{name}.count", ("",))
        if read[0] == "result" and read[1].decode().splitlines() != tokens:
            yield f"the counter of {name} is {tokens}, and was read as {read[1]!r}"


async def failures(client: DSecClient, notes: Notes, victim: Victim) -> Iterator[str]:
    """What failed says so, with a cause; and fails only where it may."""
    wrong: list[str] = []
    for name, sandbox in notes.sandboxes.items():
        info: SandboxInfo = await client._channel.call("sandbox.inspect", SandboxRequest(sandbox), repeatable=True)
        if info.state == "failed" and (not info.cause or not ALLOWED[victim.kind][0] >= FAILED):
            wrong.append(f"{name} is failed of {info.cause!r}")
        failed = any(
            outcome[:2] == ("error", "sandbox_failed")
            for step, outcome in notes.acknowledged.items()
            if step.startswith(f"{name}.") and not step.endswith(".create")
        )
        if failed and info.state not in ("failed", "stopped"):
            wrong.append(f"{name} was said to have failed, and is {info.state}")
    return iter(wrong)


async def log_counts(node: FaultNode, client: DSecClient, rollout: str) -> tuple[int, int]:
    """Steps of a rollout, and how many of all scopes are said to run."""
    # who reads the log has what was written ahead committed
    async for _ in (await CommandLog.find(client, rollout)).pages(limit=1):
        pass
    with contextlib.closing(sqlite3.connect(f"file:{node.state_dir}/edge.db?mode=ro", uri=True)) as database:
        ((steps,),) = database.execute(
            "SELECT count(*) FROM log_steps JOIN log_scopes ON log_scopes.id = scope WHERE name = ?", (rollout,)
        )
        ((running,),) = database.execute("SELECT count(*) FROM log_steps WHERE state = 0")
    return steps, running


async def works(client: DSecClient) -> None:
    """The node still makes a sandbox and runs something in it, as soon as it has noticed who died."""
    args = DSecContainerRunArgs(container_image="tiny:1")
    async with asyncio.timeout(SETTLE_S):
        while True:
            try:
                sandbox = await client.run_container(args, timeout=SETTLE_S)
                break
            except UnavailableError:
                await asyncio.sleep(0.01)
    async with sandbox:
        assert (await sandbox.run_shell("echo on")).stdout == "on\n"


async def nothing_left(node: FaultNode) -> list[str]:
    """After everything was stopped: what is still there and should not be."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        left = list(_left(node))
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.01)


def _left(node: FaultNode) -> Iterator[str]:
    inits = node.inits()
    if inits:
        yield f"PID 1 of sandboxes: {inits}"
    for root in node._cgroup_roots():
        for top, _, _ in os.walk(root):
            with contextlib.suppress(OSError):
                if pids := Path(top, "cgroup.procs").read_text().split():
                    yield f"control group {top} has {pids}"
            with contextlib.suppress(FileNotFoundError):
                if "FROZEN" in Path(top, "freezer.state").read_text():
                    yield f"control group {top} is frozen"
    if uppers := node.uppers():
        yield f"uppers: {uppers}"
    if trash := node.trash():
        yield f"trash: {trash}"
    servers = {node.process.pid if node.process else 0, *node.fork_servers()}
    yield from (f"mount in {pid}: {line}" for pid, line in mounts_naming(str(node.run_dir)) if pid not in servers)
    if len(node.fork_servers()) != 1:
        yield f"fork servers: {node.fork_servers()}"


def descriptors(node: FaultNode) -> Counter[str]:
    """What the server has open, by kinds."""
    assert node.process is not None
    kinds: Counter[str] = Counter()
    for link in os.listdir(f"/proc/{node.process.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            kinds[os.readlink(f"/proc/{node.process.pid}/fd/{link}").partition("[")[0]] += 1
    return kinds


async def no_more_descriptors(node: FaultNode, before: Counter[str]) -> list[str]:
    """Of a server that has lived through the seed."""
    # what it opens once: layers for a new fork server, and its input; connections to the journal, when first needed
    journal = {f"{node.state_dir}/edge.db{suffix}" for suffix in ("", "-wal", "-ahead")}
    may_come = Counter({"/": 1, "/dev/null": 1} | {name: max(0, CONNECTIONS - before[name]) for name in journal})
    deadline = time.monotonic() + SETTLE_S
    while True:
        more = descriptors(node) - before - may_come
        if not more or time.monotonic() > deadline:
            return [f"the server has more descriptors than before: {dict(more)}"] if more else []
        await asyncio.sleep(0.01)
