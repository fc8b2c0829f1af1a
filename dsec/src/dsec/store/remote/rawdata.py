"""Data files as they are, in a store that is a directory: whoever has it mounted reads them without fetching."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from contextlib import ExitStack, suppress

from dsec.store.records import LayerRecord, is_remote
from dsec.store.threads import in_thread
from dsec.store.verify import check_whole
from libdsec.protocol.errors import CapacityError, IntegrityError, UnavailableError

from .beside import not_whole
from .manifest import layer_path

_PIECE = 32 * 1024 * 1024


def raw_location(directory: str, layer: LayerRecord) -> str | None:
    """Where a layer's data file lies in the store, whole."""
    path = os.path.join(directory, layer_path(layer.digest, "data"))
    try:
        return path if os.stat(path).st_size == layer.data_bytes else None
    except OSError:
        return None


async def publish_raw(directory: str, layer: LayerRecord) -> int:
    """Write it, unless it is there. Returns the bytes written.

    :raises CapacityError: the store is full; nothing is left.
    :raises ConflictError: the data is not whole here.
    """
    if await asyncio.to_thread(raw_location, directory, layer) is not None:
        return 0
    try:
        await asyncio.to_thread(check_whole, layer)
    except IntegrityError as error:
        if not is_remote(layer):
            raise
        raise not_whole(layer) from error
    target = os.path.join(directory, layer_path(layer.digest, "data"))
    partial = f"{target}.{secrets.token_hex(8)}.partial"
    try:
        with ExitStack() as stack:
            source = os.open(layer.data, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, source)
            copy = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            stack.callback(os.close, copy)
            stack.callback(_remove, partial)
            at = 0
            while at < layer.data_bytes:
                at += await in_thread(None, _copy, source, copy, at)
            await in_thread(None, os.fsync, copy)
            await in_thread(None, os.rename, partial, target)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (CapacityError if full else UnavailableError)(
            f"cannot write {target}: {error.strerror}", store=directory
        ) from error
    return layer.data_bytes


def _copy(source: int, target: int, at: int) -> int:
    """A piece; pieces that are all zeros stay holes."""
    piece = os.pread(source, _PIECE, at)
    if not piece:
        raise OSError(errno.EIO, "the data file ends early")
    if piece.count(0) == len(piece):
        os.ftruncate(target, at + len(piece))
        return len(piece)
    done = 0
    while done < len(piece):
        done += os.pwrite(target, memoryview(piece)[done:], at + done)
    return done


def _remove(path: str) -> None:
    """Unless it has its name by now."""
    with suppress(FileNotFoundError):
        os.unlink(path)
