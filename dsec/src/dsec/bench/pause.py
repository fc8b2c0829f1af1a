"""`pause`: what pausing a sandbox with an idle process of 200 MB gives back, and how soon it answers afterwards.

Ours is the time from a call to its answer on a sandbox that is paused, with zram: the call resumes it first, and is a
`run_shell("true")`. The others are what the process took of MemAvailable, of three kinds, and each ratio is the share
of it that pausing does not give back: data that does not compress, with a swap file; data that compresses about 20 : 1,
with zram (what zram keeps counts as not given back); and pages of a file, of MemFree, since MemAvailable counts on them
anyway.

Swap is made for it and taken away again. A kind that this machine cannot do is null, and a note says why: there is no
zram, no room for a file, or zram of the machine's own, which would be filled before a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Literal

import msgspec

from dsec.linux.swap import Setup, areas_in_use
from libdsec import DSecClient, DSecContainerRunArgs, Sandbox
from libdsec.protocol.errors import CapacityError, InternalError, UnsupportedOperationError

from .figures import Figure, Report, median, of_times
from .ground import Ground
from .idle_memory import others_kb, resting
from .machine import machine, memory_kb
from .native import compile_hold
from .rounds import Progress

NAME = "pause"
SAMPLES = 30
HELD_MB = 200
SWAP_BYTES = 512 * 1024 * 1024
_HOLD, _DATA = "/var/tmp/hold", "/var/tmp/held"

Swap = Literal["file", "zram"]


class Kind(msgspec.Struct, frozen=True):
    data: str
    swap: Swap
    counted: str
    """The line of /proc/meminfo that falls."""


KINDS = {
    "resident_after": Kind("random", "file", "MemAvailable"),
    "resident_after_zram": Kind("records", "zram", "MemAvailable"),
    "resident_after_files": Kind("file", "zram", "MemFree"),
}


class Measured(msgspec.Struct, frozen=True):
    took_mb: float
    kept_mb: float
    pause_ms: list[float]
    resume_ms: list[float]


def free_pages_kb(zones: Path = Path("/proc/zoneinfo")) -> int:
    """In lists of single processors: free, but counted nowhere; a hundred megabytes may wait there for a while."""
    return sum(int(count) for count in re.findall(r"^ +count: +(\d+)$", zones.read_text(), re.MULTILINE)) * 4


@contextlib.asynccontextmanager
async def _swap(ground: Ground, kind: Swap) -> AsyncIterator[str | None]:
    """With swap of that kind in the body, gone afterwards; or the reason why there is none."""
    setup = Setup(str(ground.directory / "swap"))
    of_machine = [area.path for area in areas_in_use() if area.zram]
    if kind == "file" and of_machine:
        yield f"{of_machine[0]} is filled before a swap file"
        return
    try:
        try:
            if kind == "file":
                await asyncio.to_thread(setup.make_file, str(ground.directory / "swapped"), SWAP_BYTES)
            elif not of_machine:
                await asyncio.to_thread(setup.make_zram, SWAP_BYTES)
        except (CapacityError, UnsupportedOperationError) as error:
            yield error.message
            return
        yield None
    finally:
        await asyncio.to_thread(setup.undo)


async def _measured(ground: Ground, client: DSecClient, program: Path, kind: Kind, samples: int) -> Measured:
    def read() -> int:
        return memory_kb(kind.counted) + free_pages_kb() + others_kb(ground.directory)

    async with await client.run_container(DSecContainerRunArgs(container_image=ground.image)) as sandbox:
        await sandbox.files.upload(program, _HOLD)
        (await sandbox.run_shell(f"chmod +x {_HOLD}")).check()
        before = await resting(read)
        # its command line names the ground, so that its memory is not taken for another's
        command = (_HOLD, kind.data, str(HELD_MB), _DATA, ground.directory.name)
        async with await sandbox.exec_stream(command) as process:
            async with asyncio.timeout(60):
                if (line := await anext(aiter(process.stdout))) != b"ready\n":
                    raise InternalError(f"cannot hold memory in a sandbox: it said {line[:200]!r}")
            during = await resting(read)
            await sandbox.pause()
            after = await resting(read)
            pauses, resumes = await _turns(sandbox, samples)
            process.kill()
    return Measured((before - during) / 1024, (before - after) / 1024, pauses, resumes)


async def _turns(sandbox: Sandbox, samples: int) -> tuple[list[float], list[float]]:
    """Milliseconds of pausing, and of the first call after it. It is paused when it comes."""
    pauses, resumes = [], []
    for _ in range(samples):
        resumes.append(await _timed(lambda: sandbox.run_shell("true")))
        pauses.append(await _timed(sandbox.pause))
    return pauses, resumes


async def _timed(call: Callable[[], Awaitable[object]]) -> float:
    begin = time.perf_counter()
    await call()
    return (time.perf_counter() - begin) * 1e3


async def measure(ground: Ground, samples: int, progress: Progress) -> Report:
    program = await compile_hold(ground.directory)
    measured: dict[str, Measured] = {}
    notes: dict[str, str] = {}
    async with ground.node.running() as client:
        for number, (name, kind) in enumerate(KINDS.items()):
            progress(number, len(KINDS), kind.data)
            async with _swap(ground, kind.swap) as why_not:
                if why_not is None:
                    measured[name] = await _measured(ground, client, program, kind, samples)
                else:
                    notes[name] = why_not
    return _report(ground, measured, notes)


def _report(ground: Ground, measured: dict[str, Measured], notes: dict[str, str]) -> Report:
    detail: dict[str, float] = {}
    for name, found in measured.items():
        detail |= {f"{name}_mb": found.kept_mb, f"{name}_pause_ms": median(found.pause_ms)}
        detail[f"{name}_resume_ms"] = median(found.resume_ms)
    warm = measured.get("resident_after_zram")
    return Report(
        name=NAME,
        ours=of_times(warm.resume_ms, detail) if warm else Figure(0.0, "ms", 0, detail=detail),
        peers={name: _took(measured[name]) if name in measured else None for name in KINDS},
        floor=None,
        ratios={name: _share(measured[name]) if name in measured else None for name in KINDS},
        machine=machine(ground.load),
        notes=notes,
    )


def _took(found: Measured) -> Figure:
    return Figure(found.took_mb, "MB", 1)


def _share(found: Measured) -> float:
    """Others' memory moves too: what seems to be less than nothing is nothing."""
    return max(0.0, found.kept_mb / found.took_mb)
