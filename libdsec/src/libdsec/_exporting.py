"""A stream of a call into a local file."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import BinaryIO

from ._streamed import streamed
from ._transfers import Saving
from ._transport.streaming import Streaming
from .protocol.errors import FileOperationError

_MODE = 0o644


Start = Callable[[], Awaitable[Streaming]]
"""Begins the call, once there is a file for what it sends."""


async def export(
    start: Start, method: str, file: str | os.PathLike[str] | BinaryIO, progress: Callable[[int], None] | None
) -> int:
    """All that comes on stream 2: into a file of that name, which is there when all of it is, or into one that is open.
    Returns the number of bytes.

    :raises DSecError: how the call ended.
    :raises FileOperationError: the file cannot be written.
    """
    if not isinstance(file, str | os.PathLike):
        return await _write_all(start, method, file, progress)
    # not in a thread: one that a cancel leaves behind would make the file, and nobody would know of it
    saving = Saving(os.fspath(file), _MODE)
    try:
        async with aclosing(streamed(await start(), method)) as pieces:
            async for piece in pieces:
                saving.write(piece)
                if progress is not None:
                    progress(saving.size)
        saving.commit()
    finally:
        saving.close()
    return saving.size


async def _write_all(start: Start, method: str, file: BinaryIO, progress: Callable[[int], None] | None) -> int:
    size = 0
    async with aclosing(streamed(await start(), method)) as pieces:
        async for piece in pieces:
            # a pipe may take its time
            await asyncio.to_thread(_write_whole, file, piece)
            size += len(piece)
            if progress is not None:
                progress(size)
    await asyncio.to_thread(file.flush)
    return size


def _write_whole(file: BinaryIO, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        written: int | None = file.write(rest)  # an unbuffered one may take a part
        if written is None:
            raise FileOperationError(
                "cannot write to the open file: it does not wait, and has no room", errno=errno.EAGAIN, local=True
            )
        rest = rest[written:]
