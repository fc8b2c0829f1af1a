"""Names in a layer, read from its metadata image without mounting it."""

from __future__ import annotations

import mmap
import os
import struct
from typing import Final

from libdsec.protocol.errors import IntegrityError

from .erofs import format as disk

DIRECTORY: Final = 2
"""File type of an entry, as EROFS numbers them."""
CHARACTER_DEVICE: Final = 3
"""In a layer made from an upper, also what hides a name of lower layers."""

Found = tuple[int, int]
"""(nid, file type)."""


class Listing:
    """One metadata image. The image is trusted as far as its digest: damaged structures end in `IntegrityError`."""

    def __init__(self, path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._image = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            raise IntegrityError(f"cannot list {path}: {error}", path=path) from error
        self._path = path
        superblock = disk.SUPERBLOCK.unpack_from(self._image, disk.SUPERBLOCK_OFFSET)
        if superblock[0] != disk.MAGIC:
            self.close()
            raise IntegrityError(f"cannot list {path}: not an EROFS image", path=path)
        self.root: int = superblock[5]
        self._first_inode = superblock[10] * disk.BLOCK_SIZE

    def close(self) -> None:
        self._image.close()

    def children(self, directory: int) -> dict[bytes, Found]:
        """Entries of a directory by its nid, without `.` and `..`."""
        try:
            entries: dict[bytes, Found] = {}
            for start, end in self._blocks(directory):
                entries.update(self._block(start, end))
        except (IndexError, ValueError, struct.error) as error:
            raise IntegrityError(f"cannot list {self._path}: damaged directory {directory}: {error}") from error
        return entries

    def _blocks(self, nid: int) -> list[tuple[int, int]]:
        """Where the directory's blocks lie in the image: (first byte, byte behind)."""
        offset = self._first_inode + nid * disk.SLOT_SIZE
        form = int.from_bytes(self._image[offset : offset + 2], "little")
        if form & 1:
            fields = disk.EXTENDED_INODE.unpack_from(self._image, offset)
            size, union, inode_size = fields[4], fields[5], disk.EXTENDED_INODE.size
        else:
            fields = disk.COMPACT_INODE.unpack_from(self._image, offset)
            size, union, inode_size = fields[4], fields[6], disk.COMPACT_INODE.size
        slots = fields[1]
        if slots:
            inode_size += disk.XATTR_HEADER.size + 4 * (slots - 1)
        inline = form >> 1 & 7 == disk.LAYOUT_INLINE
        whole = size // disk.BLOCK_SIZE if inline else -(-size // disk.BLOCK_SIZE)
        blocks = []
        for number in range(whole):
            start = (union + number) * disk.BLOCK_SIZE
            blocks.append((start, start + min(disk.BLOCK_SIZE, size - number * disk.BLOCK_SIZE)))
        if inline and size % disk.BLOCK_SIZE:
            start = offset + inode_size
            blocks.append((start, start + size % disk.BLOCK_SIZE))
        return blocks

    def _block(self, start: int, end: int) -> dict[bytes, Found]:
        block = self._image[start:end]
        count = int.from_bytes(block[8:10], "little") // disk.DIRENT.size
        heads = [disk.DIRENT.unpack_from(block, number * disk.DIRENT.size) for number in range(count)]
        found: dict[bytes, Found] = {}
        for number, (nid, name_at, kind, _) in enumerate(heads):
            name = block[name_at : heads[number + 1][1] if number + 1 < count else len(block)]
            # the last name of a block ends at its end or at a NUL
            name = name.partition(b"\0")[0]
            if name not in (b".", b".."):
                found[name] = (nid, kind)
        return found
