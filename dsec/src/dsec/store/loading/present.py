"""present.map: which chunks of a data file are there, as a process that dies on any line leaves it.

A header (magic, chunk size, number of chunks, inode of the data file, boot id), then a bit a chunk. A bit is set after
the chunk's bytes were written into the data file: true for as long as the kernel lives. After another boot it is a
guess, since the map may have reached the disk before the data: each such chunk is held against its digest first.
"""

from __future__ import annotations

import os
import struct
import threading
import uuid
from collections.abc import Iterator

_HEADER = struct.Struct("<8sIIQQ16s")
_MAGIC = b"dsecmap1"
_BITS_AT = 64


def boot_id() -> bytes:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return uuid.UUID(file.read().strip()).bytes


def marked_bytes(path: str, inode: int) -> int:
    """What a map that nobody has open says, without the length of a short last chunk: a figure to show, no promise."""
    try:
        with open(path, "rb") as file:
            header, bits = file.read(_BITS_AT), file.read()
    except FileNotFoundError:
        return 0
    if len(header) < _BITS_AT:
        return 0
    magic, size, _, chunks, of, _ = _HEADER.unpack_from(header)
    if (magic, of, len(bits)) != (_MAGIC, inode, _bytes(chunks)):
        return 0
    return int(size) * sum(byte.bit_count() for byte in bits)


class PresentMap:
    """Marking is safe from several threads; so is asking."""

    def __init__(self, descriptor: int, chunks: int, bits: bytearray, *, trusted: bool) -> None:
        self._fd = descriptor
        self._bits = bits
        self._lock = threading.Lock()
        self.chunks = chunks
        self.trusted = trusted
        """Written since this boot."""
        self.count = sum(byte.bit_count() for byte in bits)

    @classmethod
    def open(cls, path: str, *, chunks: int, chunk_size: int, inode: int) -> PresentMap | None:
        """None: there is none, or it is not of this data file."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            found = os.pread(descriptor, _BITS_AT + _bytes(chunks) + 1, 0)
            if len(found) == _BITS_AT + _bytes(chunks):
                magic, size, _, number, of, boot = _HEADER.unpack_from(found)
                if (magic, size, number, of) == (_MAGIC, chunk_size, chunks, inode):
                    bits = bytearray(found[_BITS_AT:])
                    if chunks % 8:
                        bits[-1] &= (1 << chunks % 8) - 1
                    return cls(descriptor, chunks, bits, trusted=boot == boot_id())
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    @classmethod
    def create(cls, path: str, *, chunks: int, chunk_size: int, inode: int) -> PresentMap:
        """An empty one, whole under its name or not there."""
        partial = f"{path}.partial"
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            header = _HEADER.pack(_MAGIC, chunk_size, 0, chunks, inode, boot_id()).ljust(_BITS_AT, b"\0")
            # written out, so that a mark finds its room on a disk that has filled up meanwhile
            os.pwrite(descriptor, header + bytes(_bytes(chunks)), 0)
            os.rename(partial, path)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, chunks, bytearray(_bytes(chunks)), trusted=True)

    def has(self, chunk: int) -> bool:
        return bool(self._bits[chunk >> 3] & 1 << (chunk & 7))

    def has_all(self, first: int, end: int) -> bool:
        return all(map(self.has, range(first, end)))

    def mark(self, chunk: int) -> None:
        """Its bytes are in the data file."""
        self._set(chunk, True)

    def clear(self, chunk: int) -> None:
        self._set(chunk, False)

    def trust(self) -> None:
        """Every bit that is still set was checked since this boot."""
        os.pwrite(self._fd, boot_id(), _HEADER.size - 16)
        self.trusted = True

    def absent(self, first: int = 0, end: int | None = None) -> Iterator[int]:
        for chunk in range(first, self.chunks if end is None else min(end, self.chunks)):
            if not self.has(chunk):
                yield chunk

    def close(self) -> None:
        os.close(self._fd)

    def _set(self, chunk: int, there: bool) -> None:
        place, bit = chunk >> 3, 1 << (chunk & 7)
        with self._lock:
            byte = self._bits[place] | bit if there else self._bits[place] & ~bit
            if byte != self._bits[place]:
                os.pwrite(self._fd, bytes((byte,)), _BITS_AT + place)
                self._bits[place] = byte
                self.count += 1 if there else -1


def _bytes(chunks: int) -> int:
    return -(-chunks // 8)
