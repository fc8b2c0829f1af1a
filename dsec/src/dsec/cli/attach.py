"""A command's streams joined to this process's own, until the command ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator

from libdsec.process import Process
from libdsec.protocol.exec import ExecResult

_PIECE = 65536


async def attach(process: Process, *, stdin: bool) -> ExecResult:
    """Copy output as it comes, and with `stdin` our standard input; pass SIGINT, SIGTERM, SIGHUP and SIGQUIT on.

    A second SIGINT kills the command and all it started.
    """
    with forwarded_signals(process):
        async with _stdin_to(process) if stdin else contextlib.nullcontext():
            async for name, chunk in process.output():
                target = sys.stdout.buffer if name == "stdout" else sys.stderr.buffer
                target.write(chunk)
                target.flush()
            return await process.wait()


@contextlib.contextmanager
def forwarded_signals(process: Process) -> Iterator[None]:
    """Signals of this process are the command's while the block runs."""
    loop = asyncio.get_running_loop()
    interrupts = 0

    def forward(number: signal.Signals) -> None:
        nonlocal interrupts
        interrupts += number is signal.SIGINT
        if interrupts > 1:
            process.kill()
        else:
            process.signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    for number in numbers:
        loop.add_signal_handler(number, forward, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _stdin_to(process: Process) -> AsyncIterator[None]:
    """Copies our standard input while the block runs."""
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        pump = tasks.create_task(_pump(process))
        try:
            yield
        except Exception as error:
            failure = error  # raised below: out of here it would come wrapped in a group
        finally:
            pump.cancel()
    if failure is not None:
        raise failure


async def _pump(process: Process) -> None:
    descriptor = sys.stdin.fileno()
    while data := await _read(descriptor):
        if not await process.stdin.write(data):
            return
    await process.stdin.close()


async def _read(descriptor: int) -> bytes:
    """The next bytes of a descriptor that is left as it is: making it non-blocking would do so for its other owners."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
    except PermissionError:  # a regular file cannot be polled, and never blocks
        return os.read(descriptor, _PIECE)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
    try:
        return os.read(descriptor, _PIECE)
    except OSError:
        return b""  # the terminal has hung up
