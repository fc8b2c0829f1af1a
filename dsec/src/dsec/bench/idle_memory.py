"""`idle-memory`: what one idle sandbox costs: the fall of MemAvailable over N of them.

MemAvailable is read before the node starts and again when N sandboxes idle, so ours includes the server, the fork
server, this client, and everything the kernel keeps. Each sandbox has run one command before, so that what a command
leaves behind (a dying cgroup) is in it. The floor: N processes that only wait, each in namespaces of its own (network
too) on an overlay of its own.

Each reading is taken once the figure has come to rest; before the first one the kernel gives back its caches and free
slabs, so that nobody lives on what another has left, or pays for it. What other processes of the machine allocate or
free meanwhile (their anonymous memory) is not counted. Ours and the floor take three turns each; the median counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from libdsec import DSecClient, DSecContainerRunArgs, Sandbox
from libdsec.protocol.errors import DSecError

from .figures import Figure, Report, median, report
from .ground import Ground
from .machine import machine, memory_kb
from .node import is_of
from .rounds import Progress

NAME = "idle-memory"
SAMPLES = 500
ROUNDS = 3
IN_FLIGHT = 16

_REST_KB = 2048
_REST_S = 1.0
_REST_READINGS = 3
_REST_TRIES = 15


def others_kb(directory: Path) -> int:
    """Anonymous memory of every process but this one and those that name the ground in their command line."""
    own, total = str(os.getpid()), 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or entry.name == own:
            continue
        # a process that ends while it is looked at has given its memory back
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if not is_of(directory, Path(entry.path)):
                total += memory_kb("RssAnon", Path(entry.path, "status"), missing=0)
    return total


def _reader(ground: Ground) -> Callable[[], int]:
    return lambda: memory_kb("MemAvailable") + others_kb(ground.directory)


def give_back_what_is_over(slabs: Path = Path("/sys/kernel/slab")) -> None:
    """Control groups that are gone but linger, for the page cache that they had read: each one, whoever's it was, takes
    1 KB more for every 64 file systems that are mounted. Then the free objects of every cache; without that
    MemAvailable falls only once those of earlier turns are used up."""
    Path("/proc/sys/vm/drop_caches").write_text("3")
    for shrink in slabs.glob("*/shrink"):
        with contextlib.suppress(FileNotFoundError):  # a cache may go while we look
            shrink.write_text("1")


async def resting(read: Callable[[], int], pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> float:
    """Kilobytes, once three readings a second apart differ by next to nothing; of a figure that never rests (others
    use the machine, or the kernel still tidies up) the median of the last readings."""
    readings = [read()]
    for _ in range(_REST_TRIES):
        await pause(_REST_S)
        readings.append(read())
        last = readings[-_REST_READINGS:]
        if len(last) == _REST_READINGS and max(last) - min(last) <= _REST_KB:
            break
    return median(readings[-_REST_READINGS:])


async def _one_idle(client: DSecClient, args: DSecContainerRunArgs) -> Sandbox:
    sandbox = await client.run_container(args, timeout=120)
    try:
        (await sandbox.run(("/bin/true",))).check()
    except BaseException:
        await sandbox.stop()
        raise
    return sandbox


async def _fill(client: DSecClient, image: str, count: int, made: list[Sandbox]) -> None:
    args = DSecContainerRunArgs(container_image=image)
    numbers = iter(range(count))

    async def fill() -> None:
        for _ in numbers:
            made.append(await _one_idle(client, args))

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(fill())


async def _empty(made: list[Sandbox]) -> None:
    """Stop all; what could not be stopped is told by the first error, when all were tried."""
    errors: list[DSecError] = []

    async def empty() -> None:
        while made:
            try:
                await made.pop().stop()
            except DSecError as error:
                errors.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(empty())
    if errors:
        raise errors[0]


async def _ours(ground: Ground, count: int) -> Figure:
    read = _reader(ground)
    give_back_what_is_over()
    before = await resting(read)
    made: list[Sandbox] = []
    async with ground.node.running() as client:
        started = await resting(read)
        try:
            await _fill(client, ground.image, count, made)
            during = await resting(read)
        finally:
            await _empty(made)
        give_back_what_is_over()
        after = await resting(read)
    base = before if ground.node.owned else started
    detail = {
        "node_mb": (before - started) / 1024,
        "sandbox_mb": (started - during) / 1024 / count,
        "not_given_back_mb": (started - after) / 1024 / count,
    }
    return Figure((base - during) / 1024 / count, "MB", count, detail=detail)


async def _floor(ground: Ground, count: int) -> Figure:
    read = _reader(ground)
    give_back_what_is_over()
    before = await resting(read)
    async with ground.native.floor_idle(count):
        during = await resting(read)
    return Figure((before - during) / 1024 / count, "MB", count)


def _middle(figures: Sequence[Figure]) -> Figure:
    """The figure of the median, details and all."""
    return sorted(figures, key=lambda figure: figure.value)[len(figures) // 2]


async def measure(ground: Ground, samples: int, progress: Progress) -> Report:
    # one sandbox first: what the first one alone costs (caches, modules) is nobody's share
    async with ground.node.running() as client:
        await _empty([await _one_idle(client, DSecContainerRunArgs(container_image=ground.image))])
    ours, floor = [], []
    for number in range(ROUNDS):
        progress(2 * number, 2 * ROUNDS, "ours")
        ours.append(await _ours(ground, samples))
        progress(2 * number + 1, 2 * ROUNDS, "floor")
        floor.append(await _floor(ground, samples))
    return report(NAME, machine(ground.load), _middle(ours), {}, _middle(floor))
