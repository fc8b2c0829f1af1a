"""The metadata image of a tree."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Final

from dsec.store.erofs import format as disk
from dsec.store.erofs.dirent import pack_block
from dsec.store.erofs.format import BLOCK_BITS, BLOCK_SIZE, SLOT_SIZE
from dsec.store.erofs.layout import NANOSECONDS, Inode, Layout, lay_out
from dsec.store.erofs.xattr import area_slots
from dsec.store.tree import Tree

_UUID_VERSION: Final = 8
"""RFC 9562: the version of a UUID whose bits are its maker's own affair."""


def build_metadata(tree: Tree, data_blocks: int, identity: bytes) -> tuple[bytearray, int]:
    """The image, whole blocks, and the number of inodes in it.

    `data_blocks` is the length of the data file in blocks; `identity` stands for its contents (the chunks' digests,
    joined) and goes into the uuid, so that equal images have equal uuids and others do not. Uses memory for the image
    (about 100 bytes an inode and 8 an index) and 0.4 KB an inode beside it.
    """
    image, inodes = unsealed_metadata(tree, data_blocks)
    seal(image, identity)
    return image, inodes


def unsealed_metadata(tree: Tree, data_blocks: int) -> tuple[bytearray, int]:
    """As `build_metadata`, but for `seal`: while the contents are still being hashed."""
    layout = lay_out(tree)
    image = bytearray(layout.total_blocks * BLOCK_SIZE)
    for inode in layout.inodes:
        _put_inode(image, layout, inode)
    if layout.xattrs.shared:
        start = layout.shared_block * BLOCK_SIZE
        image[start : start + len(layout.xattrs.shared)] = layout.xattrs.shared
    _put_superblock(image, layout, data_blocks)
    return image, len(layout.inodes)


def seal(image: bytearray, identity: bytes) -> None:
    """Put in the uuid and the checksum."""
    uuid = bytearray(hashlib.sha256(hashlib.sha256(image).digest() + identity).digest()[:16])
    uuid[6] = uuid[6] & 0x0F | _UUID_VERSION << 4
    uuid[8] = uuid[8] & 0x3F | 0x80
    image[disk.UUID_OFFSET : disk.UUID_OFFSET + 16] = uuid
    checksum = disk.crc32c(bytes(image[disk.SUPERBLOCK_OFFSET : BLOCK_SIZE]))
    disk.CHECKSUM.pack_into(image, disk.CHECKSUM_OFFSET, checksum)


def _put_superblock(image: bytearray, layout: Layout, data_blocks: int) -> None:
    seconds, nanoseconds = divmod(layout.epoch_ns, NANOSECONDS)
    disk.SUPERBLOCK.pack_into(
        image,
        disk.SUPERBLOCK_OFFSET,
        disk.MAGIC,
        0,
        disk.COMPAT_CHECKSUM | disk.COMPAT_MTIME,
        BLOCK_BITS,
        0,
        layout.inodes[0].offset // SLOT_SIZE,
        len(layout.inodes),
        seconds,
        nanoseconds,
        layout.total_blocks,
        0,
        layout.shared_block if layout.xattrs.shared else 0,
        b"",
        b"",
        disk.INCOMPAT_CHUNKED_FILE | disk.INCOMPAT_DEVICE_TABLE,
        0,
        1,
        disk.DEVICE_TABLE_OFFSET // disk.DEVICE_SLOT.size,
        0,
        0,
        0,
        0,
        b"",
    )
    disk.DEVICE_SLOT.pack_into(image, disk.DEVICE_TABLE_OFFSET, b"", data_blocks, 0, b"")


def _put_inode(image: bytearray, layout: Layout, inode: Inode) -> None:
    node = inode.node
    offset = inode.offset
    kind = node.mode & 0o170000
    union = inode.block
    if inode.layout == disk.LAYOUT_CHUNKS:
        union = disk.CHUNK_FORMAT_INDEXES | inode.chunk_bits
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        union = disk.encode_device(os.major(node.rdev), os.minor(node.rdev))
    slots = area_slots(inode.area)
    if inode.compact:
        disk.COMPACT_INODE.pack_into(
            image,
            offset,
            inode.layout << 1,
            slots,
            node.mode,
            inode.nlink,
            inode.size,
            0,
            union,
            inode.number,
            node.uid,
            node.gid,
            0,
        )
    else:
        seconds, nanoseconds = divmod(node.mtime_ns, NANOSECONDS)
        disk.EXTENDED_INODE.pack_into(
            image,
            offset,
            1 | inode.layout << 1,
            slots,
            node.mode,
            0,
            inode.size,
            union,
            inode.number,
            node.uid,
            node.gid,
            seconds,
            nanoseconds,
            inode.nlink,
            b"",
        )
    behind = offset + inode.head_size
    if inode.area:
        image[behind - len(inode.area) : behind] = inode.area
    if inode.layout == disk.LAYOUT_CHUNKS:
        _put_indexes(image, inode, disk.round_up(behind, disk.CHUNK_INDEX.size))
    elif kind == stat.S_IFDIR:
        _put_directory(image, layout, inode, behind)
    elif kind == stat.S_IFLNK:
        start = behind if inode.layout == disk.LAYOUT_INLINE else inode.block * BLOCK_SIZE
        image[start : start + inode.size] = node.target


def _put_indexes(image: bytearray, inode: Inode, position: int) -> None:
    pack = disk.CHUNK_INDEX.pack_into
    bits = inode.chunk_bits
    runs = inode.node.runs
    if inode.chunks == 1:
        if runs:
            pack(image, position, 0, disk.DATA_DEVICE, runs[0][1])
        else:
            pack(image, position, 0, 0, disk.NULL_BLOCK)
        return
    hole = disk.CHUNK_INDEX.pack(0, 0, disk.NULL_BLOCK)
    image[position : position + len(hole) * inode.chunks] = hole * inode.chunks
    for first, placed, count in runs:
        at = position + (first >> bits) * len(hole)
        for block in range(placed, placed + count, 1 << bits):
            pack(image, at, 0, disk.DATA_DEVICE, block)
            at += len(hole)


def _put_directory(image: bytearray, layout: Layout, inode: Inode, behind: int) -> None:
    by_node = layout.by_node
    children = inode.node.children
    assert children is not None

    def look_up(name: bytes) -> tuple[int, int]:
        node = children.get(name)
        if node is None:
            target = inode if name == b"." else inode.parent
            return target.offset // SLOT_SIZE, disk.FILE_TYPES[stat.S_IFDIR]
        return by_node[id(node)].offset // SLOT_SIZE, disk.FILE_TYPES[node.mode & 0o170000]

    at = inode.block * BLOCK_SIZE
    last = len(inode.blocks) - 1
    start = 0
    for number, (count, _) in enumerate(inode.blocks):
        content = pack_block(inode.names[start : start + count], look_up)
        start += count
        if number == last and inode.layout == disk.LAYOUT_INLINE:
            at = behind
        image[at : at + len(content)] = content
        at += BLOCK_SIZE
