"""A stream of plain bytes from one that may be compressed: gzip, xz, bzip2 or Zstandard, told by its first bytes.

Output is made piece by piece as it is asked for, so a small input that expands to a huge one costs no memory. Several
members one after another are one stream, zeros behind the last are ignored, anything else there is an error, and so
is an end inside a member.
"""

from __future__ import annotations

import bz2
import importlib
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from libdsec.protocol.errors import FileOperationError, UnsupportedOperationError

BUFFER_BYTES: Final = 256 * 1024
XZ_MEMORY_BYTES: Final = 512 * 1024 * 1024
"""The most that an xz stream may make its decoder use (the largest preset needs 65 MiB)."""
ZSTD_WINDOW_BITS: Final = 27
"""The largest window of a Zstandard frame: 128 MiB."""


class DecompressionError(Exception):
    """The compressed form is damaged or ends early; the text goes behind the name of what was read."""


class ByteInput(Protocol):
    """What a tar is read from: any binary file object."""

    def read(self, size: int, /) -> bytes | None: ...


class _Decoder(Protocol):
    """The common form of the standard library's incremental decompressors."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /, max_length: int = -1) -> bytes: ...


class _Zlib:
    """zlib's decompressor in that form."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, /, max_length: int = -1) -> bytes:
        made = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        # a full answer may have more behind it even when all input is used up
        self.needs_input = not self._inner.unconsumed_tail and len(made) < max_length
        return made


class _Plain(io.RawIOBase):
    """The input itself, its first bytes given once more. Does not close what it reads from."""

    def __init__(self, source: ByteInput) -> None:
        super().__init__()
        self._source = source
        self._readinto: Callable[[memoryview], int | None] | None = getattr(source, "readinto", None)
        self._head = b""

    def readable(self) -> bool:
        return True

    def peek(self, count: int) -> bytes:
        with _failure_is_typed():
            while len(self._head) < count and (more := self._source.read(count - len(self._head))):
                self._head += more
        return self._head

    def give_back(self, data: bytes) -> None:
        self._head = data + self._head

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        if self._head:
            count = min(len(self._head), len(view))
            view[:count] = self._head[:count]
            self._head = self._head[count:]
            return count
        with _failure_is_typed():
            if self._readinto is not None:
                return self._readinto(view) or 0
            data = self._source.read(len(view)) or b""
        view[: len(data)] = data
        return len(data)


@contextmanager
def _failure_is_typed() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        raise FileOperationError(f"cannot read tar: {error.strerror or error}", path="", errno=number) from error


class _Decompressed(io.RawIOBase):
    def __init__(self, source: _Plain, make: Callable[[], _Decoder], failures: tuple[type[Exception], ...]) -> None:
        super().__init__()
        self._source = source
        self._make = make
        self._failures = failures
        self._decoder = make()
        self._input = bytearray(BUFFER_BYTES)
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        while not self._ended:
            data = self._more() if self._decoder.needs_input else b""
            try:
                made = self._decoder.decompress(data, max_length=len(view))
            except self._failures as error:
                raise DecompressionError(f"is compressed and damaged: {error}") from error
            if self._decoder.eof:
                self._next_member()
            if made:
                view[: len(made)] = made
                return len(made)
        return 0

    def _more(self) -> bytes:
        got = self._source.readinto(self._input)
        if not got:
            raise DecompressionError("is cut off: the compressed stream ends early")
        return bytes(memoryview(self._input)[:got])

    def _next_member(self) -> None:
        """Go on behind the end of a member: with the next one, or to the end over zeros."""
        rest = self._decoder.unused_data
        while not (rest := rest.lstrip(b"\0")):
            got = self._source.readinto(self._input)
            if not got:
                self._ended = True
                return
            rest = bytes(memoryview(self._input)[:got])
        self._source.give_back(rest)
        self._decoder = self._make()


def open_plain(source: ByteInput) -> io.BufferedReader:
    """`source` from its present position, decompressed if it is compressed. `source` is not closed by this.

    Reading raises `DecompressionError`, or `FileOperationError` when `source` itself fails. Raises
    `UnsupportedOperationError` for Zstandard where no decoder for it is installed (`backports.zstd`, before
    Python 3.14).
    """
    plain = _Plain(source)
    magic = plain.peek(6)
    if magic.startswith(b"\x1f\x8b"):
        return _buffered(_Decompressed(plain, _Zlib, (zlib.error,)))
    if magic == b"\xfd7zXZ\0":
        return _buffered(_Decompressed(plain, _xz, (lzma.LZMAError,)))
    if magic.startswith(b"BZh"):
        return _buffered(_Decompressed(plain, bz2.BZ2Decompressor, (OSError, ValueError)))
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        zstd = _zstd()
        return _buffered(_Decompressed(plain, lambda: _zstd_decoder(zstd), (zstd.ZstdError,)))
    return _buffered(plain)


def as_plain(source: ByteInput) -> io.BufferedReader:
    """As `open_plain`, of what is not compressed, whatever its first bytes are."""
    return _buffered(_Plain(source))


def _buffered(raw: io.RawIOBase) -> io.BufferedReader:
    return io.BufferedReader(raw, BUFFER_BYTES)


def _xz() -> _Decoder:
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)


def _zstd() -> Any:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedOperationError(
            f"cannot decompress: Zstandard needs the Python package {name}", package=name
        ) from error


def _zstd_decoder(zstd: Any) -> _Decoder:
    options = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_BITS}
    decoder: _Decoder = zstd.ZstdDecompressor(options=options)
    return decoder
