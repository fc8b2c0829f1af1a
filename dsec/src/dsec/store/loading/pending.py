"""Readers that wait and whose events were taken: a file that the next process reads when this one has died.

A slot an event, at the place of its descriptor's number, written before the event is handed on and cleared after it was
answered. An answer that was given and not cleared is given twice, which the kernel refuses without harm.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

_SLOT = struct.Struct("=I4xQQ32s8x")
_WAITS = 0x7061_6974
_CLEAR = bytes(4)


class Taken(NamedTuple):
    """An event that a dead process had taken."""

    descriptor: int
    digest: str
    offset: int
    length: int


class PendingEvents:
    """Slots are written and cleared by different threads, each its own."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def record(self, descriptor: int, digest: str, offset: int, count: int) -> None:
        """:raises OSError: no room; the event must not be handed on."""
        raw = bytes.fromhex(digest.removeprefix("sha256:"))
        os.pwrite(self._fd, _SLOT.pack(_WAITS, offset, count, raw), descriptor * _SLOT.size)

    def clear(self, descriptor: int) -> None:
        os.pwrite(self._fd, _CLEAR, descriptor * _SLOT.size)

    def read(self) -> list[Taken]:
        """All that were recorded and not cleared."""
        found = []
        size = os.fstat(self._fd).st_size
        for number in range(size // _SLOT.size):
            mark, offset, count, raw = _SLOT.unpack(os.pread(self._fd, _SLOT.size, number * _SLOT.size))
            if mark == _WAITS:
                found.append(Taken(number, f"sha256:{raw.hex()}", offset, count))
        return found

    def forget(self) -> None:
        """They were of another group."""
        os.ftruncate(self._fd, 0)

    def close(self) -> None:
        os.close(self._fd)
