"""A tar on its way from one stage to another: owners rewritten, the directory itself left out.

It comes out of a sandbox, so nothing in it is believed: it is passed on header by header, in bounded memory, and what
it says is judged where it is unpacked, in the other sandbox.
"""

from __future__ import annotations

from typing import IO

from libdsec.protocol.errors import WireError

from .context import Owner

BLOCK = 512
_MAX_EXTENSION = 1024 * 1024
_EXTENSIONS = b"xgLK"
_PIECE = 1024 * 1024
_UID, _GID, _SIZE, _SUM = slice(108, 116), slice(116, 124), slice(124, 136), slice(148, 156)
_TYPE, _NAMES = 156, slice(265, 329)
_DIRECTORY_ITSELF = (b"./", b".")


def rewrite(source: IO[bytes], sink: IO[bytes], owner: Owner | None, *, without_root: bool) -> None:
    """:raises WireError: not a tar, or one that ends early."""
    pending = b""
    while True:
        header = _exactly(source, BLOCK)
        if not header.strip(b"\0"):
            sink.write(bytes(2 * BLOCK))
            return
        size = _number(header[_SIZE])
        padded = -(-size // BLOCK) * BLOCK
        if header[_TYPE] in _EXTENSIONS:
            if len(pending) + padded > _MAX_EXTENSION:
                raise WireError("cannot copy between stages: a name or attribute in the archive is too long")
            pending += header + _exactly(source, padded)
            continue
        if without_root and header[:100].rstrip(b"\0") in _DIRECTORY_ITSELF:
            pending = b""
            continue
        sink.write(pending + (header if owner is None else _owned(header, owner)))
        pending = b""
        _copy(source, sink, padded)


def _owned(header: bytes, owner: Owner) -> bytes:
    changed = bytearray(header)
    changed[_UID], changed[_GID] = _octal(owner.uid), _octal(owner.gid)
    changed[_NAMES] = bytes(64)
    changed[_SUM] = b" " * 8
    changed[_SUM] = b"%06o\0 " % sum(changed)
    return bytes(changed)


def _octal(value: int) -> bytes:
    """Seven digits, or where these are too few the binary form of GNU."""
    return b"%07o\0" % value if value < 8**7 else b"\x80" + value.to_bytes(7, "big")


def _number(text: bytes) -> int:
    if text[0] & 0x80:
        return int.from_bytes(bytes([text[0] & 0x7F]) + text[1:], "big")
    digits = text.strip(b"\0 ") or b"0"
    if digits.strip(b"01234567"):
        raise WireError("cannot copy between stages: a size in the archive is no number")
    return int(digits, 8)


def _exactly(source: IO[bytes], size: int) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise WireError("cannot copy between stages: the archive ends early")
    return data


def _copy(source: IO[bytes], sink: IO[bytes], size: int) -> None:
    while size:
        piece = _exactly(source, min(size, _PIECE))
        sink.write(piece)
        size -= len(piece)
