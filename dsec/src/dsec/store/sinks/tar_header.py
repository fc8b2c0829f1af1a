"""Headers of a POSIX tar: ustar blocks, and the extended ones before them for what does not fit.

The same entry gives the same bytes, always: no clock, no name of this machine, records in a fixed order.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import Final

from dsec.store.sources.tar_header import BLOCK
from dsec.store.tree import Node

_FIELDS: Final = struct.Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x")
_CHECKSUM_AT: Final = 148
_MAX_OCTAL: Final = 8**11 - 1
_NANOSECONDS: Final = 1_000_000_000
_XATTR: Final = b"SCHILY.xattr."
_EXTENDED_NAME: Final = b"PaxHeader"

REGULAR, LINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"

KINDS: Final = {
    stat.S_IFREG: REGULAR,
    stat.S_IFLNK: SYMLINK,
    stat.S_IFCHR: CHARACTER,
    stat.S_IFBLK: BLOCK_DEVICE,
    stat.S_IFDIR: DIRECTORY,
    stat.S_IFIFO: FIFO,
}
"""What a tar can hold, by file type: everything but sockets."""


def header(path: bytes, node: Node, kind: bytes, size: int = 0, link: bytes = b"", sparse: int | None = None) -> bytes:
    """All blocks before an entry's data. `link` is the target of a symbolic or hard link; `sparse` the length of a file
    whose data of `size` bytes is a map of its extents, then those (GNU's sparse form 1.0)."""
    name = path + b"/" if kind == DIRECTORY else path
    records: list[tuple[bytes, bytes]] = []
    if sparse is not None:
        records += [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", path)]
        records.append((b"GNU.sparse.realsize", str(sparse).encode()))
        # what a reader that knows nothing of it makes of the data
        name = b"GNUSparseFile.0/" + path.rpartition(b"/")[2]
    if len(name) > 100:
        records.append((b"path", name))
    if len(link) > 100:
        records.append((b"linkpath", link))
    if size > _MAX_OCTAL:
        records.append((b"size", str(size).encode()))
    seconds, nanoseconds = divmod(node.mtime_ns, _NANOSECONDS)
    if nanoseconds or not 0 <= seconds <= _MAX_OCTAL:
        records.append((b"mtime", _time(node.mtime_ns)))
        seconds = min(max(seconds, 0), _MAX_OCTAL)
    if kind != LINK:
        records.extend((_XATTR + _escaped(key), value) for key, value in sorted(node.xattrs))
    device = node.rdev if kind in (CHARACTER, BLOCK_DEVICE) else 0
    block = _block(name, node.mode & 0o7777, node.uid, node.gid, size, seconds, kind, link, device)
    return _extended(records) + block if records else block


def padding(size: int) -> bytes:
    """What follows `size` bytes of data."""
    return bytes(-size % BLOCK)


END_MARK: Final = bytes(2 * BLOCK)


def _time(mtime_ns: int) -> bytes:
    seconds, nanoseconds = divmod(abs(mtime_ns), _NANOSECONDS)
    fraction = f".{nanoseconds:09}".rstrip("0") if nanoseconds else ""
    return f"{'-' if mtime_ns < 0 else ''}{seconds}{fraction}".encode()


def _escaped(name: bytes) -> bytes:
    """An attribute's name without the character that ends a record's key."""
    return name.replace(b"%", b"%25").replace(b"=", b"%3D")


def _extended(records: list[tuple[bytes, bytes]]) -> bytes:
    body = b"".join(_record(key, value) for key, value in records)
    return _block(_EXTENDED_NAME, 0o644, 0, 0, len(body), 0, b"x", b"", 0) + body + padding(len(body))


def _record(key: bytes, value: bytes) -> bytes:
    """Its own length, in decimal, stands at its front and counts itself."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return str(length).encode() + b" " + key + b"=" + value + b"\n"


def _block(
    name: bytes,
    mode: int,
    uid: int,
    gid: int,
    size: int,
    seconds: int,
    kind: bytes,
    link: bytes,
    device: int,
) -> bytes:
    block = bytearray(
        _FIELDS.pack(
            name[:100],
            _octal(mode, 8),
            _octal(uid, 8),
            _octal(gid, 8),
            _octal(size if size <= _MAX_OCTAL else 0, 12),
            _octal(seconds, 12),
            b" " * 8,
            kind,
            link[:100],
            b"ustar\0",
            b"00",
            b"",
            b"",
            _octal(os.major(device), 8),
            _octal(os.minor(device), 8),
            b"",
        )
    )
    block[_CHECKSUM_AT : _CHECKSUM_AT + 8] = b"%06o\0 " % sum(block)
    return bytes(block)


def _octal(number: int, width: int) -> bytes:
    return b"%0*o\0" % (width - 1, number)
