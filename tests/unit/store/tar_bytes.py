"""Tars written byte by byte, so that they can be wrong in any way."""

from __future__ import annotations

BLOCK = 512
END = bytes(2 * BLOCK)


def number(value: int, width: int) -> bytes:
    return b"%0*o\0" % (width - 1, value)


def header(
    name: bytes,
    *,
    kind: bytes = b"0",
    size: int = 0,
    mode: int = 0o644,
    uid: bytes | int = 0,
    gid: bytes | int = 0,
    mtime: bytes | int = 0,
    link: bytes = b"",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    device: tuple[int, int] = (0, 0),
    checksum: int | None = None,
    tail: bytes = b"",
) -> bytes:
    """One header block; numbers given as bytes stand as they are. `tail` replaces what is behind the devices."""
    block = bytearray(
        name.ljust(100, b"\0")
        + number(mode, 8)
        + (uid if isinstance(uid, bytes) else number(uid, 8))
        + (gid if isinstance(gid, bytes) else number(gid, 8))
        + number(size, 12)
        + (mtime if isinstance(mtime, bytes) else number(mtime, 12))
        + b" " * 8
        + kind
        + link.ljust(100, b"\0")
        + magic
        + bytes(64)
        + number(device[0], 8)
        + number(device[1], 8)
        + (tail.ljust(167, b"\0") if tail else prefix.ljust(155, b"\0") + bytes(12))
    )
    assert len(block) == BLOCK
    block[148:156] = b"%06o\0 " % (sum(block) if checksum is None else checksum)
    return bytes(block)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def member(name: bytes, data: bytes = b"", **fields: object) -> bytes:
    return header(name, size=len(data), **fields) + padded(data)  # type: ignore[arg-type]


def record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    while len(b"%d" % length) + len(key) + len(value) + 3 != length:
        length = len(b"%d" % length) + len(key) + len(value) + 3
    return b"%d %s=%s\n" % (length, key, value)


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    return member(b"pax", b"".join(record(key, value) for key, value in records), kind=kind)
