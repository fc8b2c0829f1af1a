"""The smallest EROFS image, an empty root directory in one block: what a kernel is asked to mount when we want to
know whether it can."""

from __future__ import annotations

import struct

_BLOCK = 4096
_SUPERBLOCK_AT = 1024
_ROOT_NID = (_SUPERBLOCK_AT + 128) // 32
_MAGIC = 0xE0F5E1E2
_COMPACT_FLAT_INLINE = 2 << 1
_DIRECTORY = 2


def empty_erofs() -> bytes:
    """One block: superblock, a compact root inode, and its two entries behind it."""
    entries = struct.pack("<QHBB", _ROOT_NID, 24, _DIRECTORY, 0) + struct.pack("<QHBB", _ROOT_NID, 25, _DIRECTORY, 0)
    names = entries + b"..."
    inode = struct.pack("<HHHHIIIIHHI", _COMPACT_FLAT_INLINE, 0, 0o040755, 2, len(names), 0, 0, 1, 0, 0, 0)
    superblock = struct.pack(
        "<IIIBBHQQIIII16s16sIHHHBBIQ24s",
        _MAGIC, 0, 0, 12, 0, _ROOT_NID, 1, 0, 0, 1, 0, 0, b"", b"", 0, 0, 0, 0, 0, 0, 0, 0, b"",
    )  # fmt: skip
    return (bytes(_SUPERBLOCK_AT) + superblock + inode + names).ljust(_BLOCK, b"\0")
