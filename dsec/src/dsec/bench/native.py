"""The C programs of the bench: compiled on the spot into the scratch directory, driven, and read.

A program that is abandoned (Ctrl-C, a deadline) is killed with its whole process group and waited for; what it had made
lies in namespaces of its children and dies with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import itertools
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from libdsec.protocol.errors import DeadlineExceededError, InternalError, UnsupportedOperationError

_SOURCES = ("floor.c", "stopwatch.c", "turns.h")


class Turns(msgspec.Struct, frozen=True):
    """Milliseconds of each finished turn: to its first output, and to its end; and how long all took together."""

    first: list[float]
    total: list[float]
    elapsed_s: float


def parse_turns(output: str) -> Turns:
    """:raises InternalError: a line that the programs do not print."""
    first: list[float] = []
    total: list[float] = []
    elapsed = 0.0
    for line in output.splitlines():
        try:
            words = line.split()
            if words[0] == "done":
                elapsed = int(words[2]) / 1e9
            else:
                first.append(int(words[0]) / 1e6)
                total.append(int(words[1]) / 1e6)
        except (ValueError, IndexError):
            raise InternalError(f"cannot read the stop-watch: it printed {line[:200]!r}") from None
    return Turns(first, total, elapsed or sum(total) / 1e3)


async def finish(process: asyncio.subprocess.Process) -> None:
    """The end of a process and of its group, whatever state it is in."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def output_of(argv: Sequence[str], timeout: float) -> str:
    """What the program prints.

    :raises InternalError: it ended with anything but 0; its own words are in the message.
    :raises DeadlineExceededError: it did not end in time; it is dead now.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout)
    except TimeoutError:
        raise DeadlineExceededError(f"cannot finish {argv[0]} in {timeout:.0f} s") from None
    finally:
        await finish(process)
    if process.returncode != 0:
        words = err.decode("utf-8", "replace").strip()[-1000:]
        raise InternalError(f"cannot run {' '.join(argv)[:300]}: it ended with {process.returncode}: {words}")
    return out.decode("utf-8", "replace")


class Native:
    """The compiled programs. `lower` is the root file system, `scratch` an empty directory on the disk that counts."""

    def __init__(self, directory: Path, lower: Path, scratch: Path) -> None:
        self._floor = str(directory / "floor")
        self._stopwatch = str(directory / "stopwatch")
        self._place = (str(lower), str(scratch))
        self._name = directory.name
        self._numbers = itertools.count()

    async def floor_create(self, count: int, argv: Sequence[str]) -> Turns:
        return parse_turns(await output_of([self._floor, "create", *self._place, str(count), "--", *argv], 60 + count))

    async def floor_lifecycle(self, count: int, loops: int, argv: Sequence[str]) -> Turns:
        command = [self._floor, "lifecycle", *self._place, str(count), str(loops), "--", *argv]
        return parse_turns(await output_of(command, 60 + count))

    async def floor_exec(self, count: int, argv: Sequence[str]) -> Turns:
        return parse_turns(await output_of([self._floor, "exec", *self._place, str(count), "--", *argv], 60 + count))

    async def spawn(self, argv: Sequence[str], count: int, loops: int = 1, wrap: Sequence[str] = ()) -> Turns:
        """Any program, `count` times in each of `loops`; `@ID@` in it becomes a name of its own for each turn.

        `wrap` goes around the stop-watch.
        """
        seconds = min(600, 60 + count)
        name = f"{self._name}-{next(self._numbers)}"
        command = [*wrap, self._stopwatch, str(seconds), str(count), str(loops), name, "--", *argv]
        return parse_turns(await output_of(command, seconds + 30))

    @contextlib.asynccontextmanager
    async def floor_idle(self, count: int) -> AsyncIterator[None]:
        """`count` idle processes in namespaces of their own while the body runs."""
        process = await asyncio.create_subprocess_exec(
            self._floor,
            "idle",
            *self._place,
            str(count),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), 60 + count)
            if line != b"ready\n":
                raise InternalError(f"cannot start {count} idle processes: see floor's message above")
            yield
            process.stdin.close()
            await asyncio.wait_for(process.wait(), 60 + count)
        except TimeoutError:
            raise DeadlineExceededError(f"cannot start and end {count} idle processes in time") from None
        finally:
            await finish(process)


async def compile_hold(directory: Path) -> Path:
    """The program that holds memory, for any root file system.

    :raises UnsupportedOperationError: no C compiler.
    """
    source, program = directory / "hold.c", directory / "hold"
    source.write_bytes(importlib.resources.files(__package__).joinpath("hold.c").read_bytes())
    await output_of([_compiler(), "-O2", "-static", "-o", str(program), str(source)], 120)
    return program


async def compile_native(directory: Path, lower: Path, scratch: Path) -> Native:
    """:raises UnsupportedOperationError: no C compiler."""
    compiler = _compiler()
    for name in _SOURCES:
        (directory / name).write_bytes(importlib.resources.files(__package__).joinpath(name).read_bytes())
    for name in ("floor", "stopwatch"):
        await output_of([compiler, "-O2", "-o", str(directory / name), str(directory / f"{name}.c")], 120)
    return Native(directory, lower, scratch)


def _compiler() -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise UnsupportedOperationError("cannot measure: no C compiler; install gcc and libc6-dev")
    return compiler
