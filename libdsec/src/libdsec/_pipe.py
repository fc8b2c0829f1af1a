"""A pipe between the event loop and one blocking thread: bounded by the kernel, and broken by closing either end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadPipe(Generic[T]):
    """Runs `work(descriptor)` in a thread of its own, which owns one end of a pipe; the loop has the other.

    However either side ends, it closes its end, so that the other is never left waiting.
    """

    def __init__(self, work: Callable[[int], T], *, loop_writes: bool) -> None:
        self._work = work
        self._loop_writes = loop_writes
        self._end = -1

    async def run(self, pump: Callable[[ThreadPipe[T]], Awaitable[None]]) -> T:
        """`pump` moves bytes on the loop's side until it has no more; what the thread returned is the result.

        When the thread fails, its error is the one that is raised, whatever the pump made of the broken pipe.
        """
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        self._end, theirs = (write_end, read_end) if self._loop_writes else (read_end, write_end)
        os.set_blocking(self._end, False)
        with ThreadPoolExecutor(1, "dsec-transfer") as executor:
            done = asyncio.get_running_loop().run_in_executor(executor, self._work, theirs)
            try:
                await pump(self)
            except BrokenPipeError:
                pass  # the thread closed its end: its own outcome says why
            except BaseException:
                self._close()
                await asyncio.wait((done,))
                done.exception()
                raise
            self._close()
            return await done

    async def write(self, data: bytes) -> None:
        """:raises BrokenPipeError: the thread has ended."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._end, rest) :]
            except BlockingIOError:
                await self._ready()

    async def read(self, size: int) -> bytes:
        """The next bytes, empty when the thread has closed its end."""
        while True:
            try:
                return os.read(self._end, size)
            except BlockingIOError:
                await self._ready()

    def _close(self) -> None:
        if self._end >= 0:
            os.close(self._end)
            self._end = -1

    async def _ready(self) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        add, remove = (
            (loop.add_writer, loop.remove_writer) if self._loop_writes else (loop.add_reader, loop.remove_reader)
        )
        add(self._end, lambda: None if waiter.done() else waiter.set_result(None))
        try:
            await waiter
        finally:
            remove(self._end)
