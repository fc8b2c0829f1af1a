"""The smallest EROFS images, of one block each: an empty root directory, and one with a file whose content lies on a
device of its own. They are what a kernel is asked to mount when we want to know whether it can."""

from __future__ import annotations

import struct

_BLOCK = 4096
_SUPERBLOCK_AT = 1024
_ROOT_NID = (_SUPERBLOCK_AT + 128) // 32
_MAGIC = 0xE0F5E1E2
_COMPACT_FLAT_INLINE = 2 << 1
_DIRECTORY, _REGULAR = 2, 1
_CHUNK_BASED = 4 << 1
_CHUNK_INDEXES = 0x20
_CHUNKED_FILE, _DEVICE_TABLE = 0x4, 0x8
_DEVICES_AT = _SUPERBLOCK_AT + 128
FILE_NAME, FILE_BYTES = "file", _BLOCK


def empty_erofs() -> bytes:
    """Superblock, a compact root inode, and its two entries behind it."""
    root = _directory(_ROOT_NID, {b".": (_ROOT_NID, _DIRECTORY), b"..": (_ROOT_NID, _DIRECTORY)})
    return (bytes(_SUPERBLOCK_AT) + _superblock(_ROOT_NID) + root).ljust(_BLOCK, b"\0")


def erofs_with_file() -> bytes:
    """As the empty one, with a file `FILE_NAME` of `FILE_BYTES` bytes: the first block of the second device."""
    device = struct.pack("<64sII56s", b"", 1, 0, b"")
    root_nid = (_DEVICES_AT + len(device)) // 32
    file_nid = root_nid + 3
    entries = {b".": (root_nid, _DIRECTORY), b"..": (root_nid, _DIRECTORY), FILE_NAME.encode(): (file_nid, _REGULAR)}
    root = _directory(root_nid, entries).ljust((file_nid - root_nid) * 32, b"\0")
    file = struct.pack("<HHHHIIIIHHI", _CHUNK_BASED, 0, 0o100644, 1, FILE_BYTES, 0, _CHUNK_INDEXES, 2, 0, 0, 0)
    place = struct.pack("<HHI", 0, 1, 0)
    superblock = _superblock(root_nid, _CHUNKED_FILE | _DEVICE_TABLE, 1, _DEVICES_AT // 128)
    return (bytes(_SUPERBLOCK_AT) + superblock + device + root + file + place).ljust(_BLOCK, b"\0")


def _superblock(root: int, features: int = 0, devices: int = 0, devices_at: int = 0) -> bytes:
    return struct.pack(
        "<IIIBBHQQIIII16s16sIHHHBBIQ24s",
        _MAGIC, 0, 0, 12, 0, root, 2, 0, 0, 1, 0, 0, b"", b"", features, 0, devices, devices_at, 0, 0, 0, 0, b"",
    )  # fmt: skip


def _directory(nid: int, entries: dict[bytes, tuple[int, int]]) -> bytes:
    """A compact inode with its entries behind it; names in order."""
    at = 12 * len(entries)
    heads = b""
    for name, (child, kind) in entries.items():
        heads += struct.pack("<QHBB", child, at, kind, 0)
        at += len(name)
    content = heads + b"".join(entries)
    inode = struct.pack("<HHHHIIIIHHI", _COMPACT_FLAT_INLINE, 0, 0o040755, 2, len(content), 0, 0, 1, 0, 0, 0)
    return inode + content
