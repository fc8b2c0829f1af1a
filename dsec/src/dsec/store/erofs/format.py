"""The on-disk structures of EROFS: numbers and field layouts, little-endian."""

from __future__ import annotations

import stat
import struct
from typing import Final

import google_crc32c

BLOCK_BITS: Final = 12
BLOCK_SIZE: Final = 1 << BLOCK_BITS
SLOT_SIZE: Final = 32
"""A node id (nid) counts slots of this many bytes from the start of the image."""

SUPERBLOCK_OFFSET: Final = 1024
MAGIC: Final = 0xE0F5E1E2

COMPAT_CHECKSUM: Final = 0x1
COMPAT_MTIME: Final = 0x2
INCOMPAT_CHUNKED_FILE: Final = 0x4
INCOMPAT_DEVICE_TABLE: Final = 0x8

SUPERBLOCK: Final = struct.Struct("<IIIBBHQqIIII16s16sIHHHBBIQ24s")
"""magic, checksum, compatible features, bits of a block's size, extension slots, root nid, number of inodes, epoch of
compact inodes (s, ns), blocks, first block of inodes, first block of shared attributes, uuid, volume name,
incompatible features, compression, extra devices, slot of the device table, directory block bits, attribute prefixes
(count, start), packed nid, reserved."""

CHECKSUM: Final = struct.Struct("<I")
CHECKSUM_OFFSET: Final = SUPERBLOCK_OFFSET + 4
UUID_OFFSET: Final = SUPERBLOCK_OFFSET + 48

DEVICE_SLOT: Final = struct.Struct("<64sII56s")
"""tag, blocks, first block in the image's own address space (0: none), reserved; 128 bytes."""
DEVICE_TABLE_OFFSET: Final = SUPERBLOCK_OFFSET + SUPERBLOCK.size
FIRST_INODE_OFFSET: Final = DEVICE_TABLE_OFFSET + DEVICE_SLOT.size
DATA_DEVICE: Final = 1
"""Device id of the data file in chunk indexes; 0 is the image itself."""

LAYOUT_PLAIN: Final = 0
LAYOUT_INLINE: Final = 2
LAYOUT_CHUNKS: Final = 4

COMPACT_INODE: Final = struct.Struct("<HHHHIIIIHHI")
"""format, attribute slots, mode, links, size, time offset, union, inode number, uid, gid, reserved; 32 bytes."""
EXTENDED_INODE: Final = struct.Struct("<HHHHQIIIIqII16s")
"""format, attribute slots, mode, reserved, size, union, inode number, uid, gid, mtime (s, ns), links, reserved;
64 bytes. The union is a block address, a device number or a chunk format."""

CHUNK_FORMAT_INDEXES: Final = 0x20
"""The union of a chunk-based inode: this flag and, below it, log2 of blocks a chunk."""
MAX_CHUNK_BITS: Final = 31
CHUNK_INDEX: Final = struct.Struct("<HHI")
"""reserved, device id, block; 8 bytes."""
NULL_BLOCK: Final = 0xFFFFFFFF
"""Block of a chunk that is a hole."""

DIRENT: Final = struct.Struct("<QHBB")
"""nid, offset of the name in this directory block, file type, reserved; 12 bytes."""

FILE_TYPES: Final = {
    stat.S_IFREG: 1,
    stat.S_IFDIR: 2,
    stat.S_IFCHR: 3,
    stat.S_IFBLK: 4,
    stat.S_IFIFO: 5,
    stat.S_IFSOCK: 6,
    stat.S_IFLNK: 7,
}

XATTR_HEADER: Final = struct.Struct("<IB7s")
"""name filter (0: not used), number of shared attributes, reserved; 12 bytes."""
XATTR_ENTRY: Final = struct.Struct("<BBH")
"""length of the name without its prefix, prefix, length of the value."""
XATTR_PREFIXES: Final = (
    (b"user.", 1),
    (b"system.posix_acl_access", 2),
    (b"system.posix_acl_default", 3),
    (b"trusted.", 4),
    (b"security.", 6),
)


def round_up(number: int, unit: int) -> int:
    """The least multiple of `unit`, a power of two, that is not below `number`."""
    return (number + unit - 1) & ~(unit - 1)


def encode_device(major: int, minor: int) -> int:
    """A device number in the kernel's 32-bit form."""
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


def decode_device(number: int) -> tuple[int, int]:
    """(major, minor) of the kernel's 32-bit form."""
    return (number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00)


def crc32c(data: bytes) -> int:
    """CRC-32C as the superblock wants it: begun with all ones, not inverted at the end."""
    return int(google_crc32c.value(data)) ^ 0xFFFFFFFF
