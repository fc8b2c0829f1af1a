"""Extended attributes: those of one inode behind it, those that several inodes have in a shared area."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from dsec.store.erofs.format import BLOCK_SIZE, XATTR_ENTRY, XATTR_HEADER, XATTR_PREFIXES, round_up
from dsec.store.tree import Xattrs

MAX_SHARED: Final = 255
"""Shared attributes of one inode: their number has eight bits."""


def supported(name: bytes) -> bool:
    """Whether EROFS has a prefix for an attribute of this name."""
    return _split(name) is not None


def encode(name: bytes, value: bytes) -> bytes:
    """One attribute as it stands on disk, padded to four bytes. `supported(name)` must hold."""
    split = _split(name)
    if split is None:
        raise ValueError(f"no attribute prefix for {name!r}")
    prefix, rest = split
    entry = XATTR_ENTRY.pack(len(rest), prefix, len(value)) + rest + value
    return entry.ljust(round_up(len(entry), 4), b"\0")


def _split(name: bytes) -> tuple[int, bytes] | None:
    for prefix, number in XATTR_PREFIXES:
        if prefix.endswith(b"."):
            if name.startswith(prefix) and len(name) > len(prefix):
                return number, name[len(prefix) :]
        elif name == prefix:
            return number, b""
    return None


class XattrTable:
    """Attribute areas for a set of inodes. An attribute that two or more inodes have in common is stored once."""

    def __init__(self, inodes: Iterable[Xattrs]) -> None:
        counts = Counter(pair for xattrs in inodes for pair in xattrs)
        self._ids: dict[tuple[bytes, bytes], int] = {}
        area = bytearray()
        for pair in sorted(pair for pair, count in counts.items() if count > 1):
            self._ids[pair] = len(area) // 4
            area += encode(*pair)
        self.shared = bytes(area.ljust(round_up(len(area), BLOCK_SIZE), b"\0"))
        """The shared area, whole blocks; empty when nothing is shared."""

    def area(self, xattrs: Xattrs) -> bytes:
        """What follows the inode: a header, ids of shared attributes, then its own; empty without any attribute."""
        if not xattrs:
            return b""
        ids: list[bytes] = []
        own: list[bytes] = []
        for pair in sorted(xattrs):
            shared = self._ids.get(pair)
            if shared is None or len(ids) == MAX_SHARED:
                own.append(encode(*pair))
            else:
                ids.append(shared.to_bytes(4, "little"))
        return XATTR_HEADER.pack(0, len(ids), b"") + b"".join(ids) + b"".join(own)


def area_slots(area: bytes) -> int:
    """The inode's field that tells the area's length: 0, or one more than its four-byte units after the header."""
    return (len(area) - XATTR_HEADER.size) // 4 + 1 if area else 0
