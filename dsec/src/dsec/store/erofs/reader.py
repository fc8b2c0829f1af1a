"""Reading back an image that this package wrote: for checks and inspection without mounting.

Reads what `metadata` writes and nothing more: no compression, one extra device. Every offset is checked, so a damaged
image gives `IntegrityError`, not nonsense.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dsec.store.erofs import format as disk
from dsec.store.erofs.format import BLOCK_BITS, BLOCK_SIZE, SLOT_SIZE
from dsec.store.tree import (
    MAX_ENTRIES,
    MAX_NAME_BYTES,
    MAX_PATH_BYTES,
    MAX_TARGET_BYTES,
    MAX_XATTR_BYTES,
    Node,
    Run,
    Xattrs,
)
from libdsec.protocol.errors import IntegrityError

_PREFIXES = {number: prefix for prefix, number in disk.XATTR_PREFIXES}
_Listed = list[tuple[bytes, int]]
_TICK_EVERY = 4096
"""Names."""


@dataclass(slots=True)
class _Raw:
    """An inode's fields, and where its attributes and what follows them begin."""

    nid: int
    layout: int
    union: int
    number: int
    area: int
    behind: int


class Image:
    """A metadata image in memory. `data_blocks` is the data file's length in blocks as the image states it."""

    def __init__(self, image: bytes | bytearray | memoryview | mmap.mmap, *, data_at: int = 0) -> None:
        """`data_at` is added to the blocks of runs: the data file's first block, where it is a part of something."""
        self._image = memoryview(image)
        self._data_at = data_at
        self._shared_pairs: dict[int, tuple[bytes, bytes]] = {}
        if len(image) < BLOCK_SIZE or len(image) % BLOCK_SIZE:
            raise IntegrityError(f"cannot read layer: an image of {len(image)} bytes")
        fields = disk.SUPERBLOCK.unpack_from(image, disk.SUPERBLOCK_OFFSET)
        if fields[0] != disk.MAGIC:
            raise IntegrityError("cannot read layer: not an EROFS image")
        first = bytearray(self._image[disk.SUPERBLOCK_OFFSET : BLOCK_SIZE])
        disk.CHECKSUM.pack_into(first, 4, 0)
        if disk.crc32c(bytes(first)) != fields[1]:
            raise IntegrityError("cannot read layer: the superblock does not match its checksum")
        self.root_nid: int = fields[5]
        self.inodes: int = fields[6]
        self._epoch_ns: int = fields[7] * 1_000_000_000 + fields[8]
        self._shared: int = fields[11] * BLOCK_SIZE
        self.uuid: bytes = fields[12]
        self.data_blocks: int = disk.DEVICE_SLOT.unpack_from(image, disk.DEVICE_TABLE_OFFSET)[1]

    def walk(self) -> Iterator[tuple[bytes, Node, int]]:
        """Every name with its node and inode number, directories before what is in them; the root is `b""`.

        Names of one inode share one `Node`; `nlink` is what the image says. `children` of directories stay empty.
        """
        with _damage_is_typed():
            yield from self._walk()

    def tree(self, tick: Callable[[], None] = lambda: None) -> tuple[Node, int]:
        """The root, with the children of every directory in their places and every `nlink` 0, and how many names lie
        below it. `tick` is called now and then, and what it raises ends the reading."""
        directories: dict[bytes, dict[bytes, Node]] = {}
        root: Node | None = None
        number = 0
        for number, (path, node, _) in enumerate(self.walk()):
            if number % _TICK_EVERY == 0:
                tick()
            node.nlink = 0
            if root is None:
                root = node
            else:
                directory, _, name = path.rpartition(b"/")
                directories[directory][name] = node
            if node.children is not None:
                directories[path] = node.children
        assert root is not None  # it is the first of every walk
        return root, number

    def _walk(self) -> Generator[tuple[bytes, Node, int], None, None]:
        nodes: dict[int, tuple[Node, int]] = {}
        names = 0
        pending = [(b"", self.root_nid)]
        seen: set[int] = set()
        while pending:
            path, nid = pending.pop()
            known = nodes.get(nid)
            if known is None:
                known = nodes[nid] = self._node(nid)
            names += 1
            if names > MAX_ENTRIES + 1:
                raise IntegrityError(f"cannot read layer: more than {MAX_ENTRIES} names")
            yield path, *known
            if stat.S_ISDIR(known[0].mode):
                if nid in seen:
                    raise IntegrityError(f"cannot read layer: directory {nid} has two names")
                seen.add(nid)
                prefix = path + b"/" if path else b""
                children = [(name, child) for name, child in self._list(nid) if name not in (b".", b"..")]
                _check_names(path, [name for name, _ in children])
                pending.extend((prefix + name, child) for name, child in reversed(children))

    def list(self, nid: int) -> _Listed:
        """A directory's (name, nid) pairs in the order on disk, `.` and `..` among them."""
        with _damage_is_typed():
            return self._list(nid)

    def _list(self, nid: int) -> _Listed:
        raw, node = self._inode(nid)
        found: _Listed = []
        content = self._content(raw, node.size)
        for start in range(0, len(content), BLOCK_SIZE):
            block = content[start : start + BLOCK_SIZE]
            found.extend(_entries(block))
        return found

    def node(self, nid: int) -> Node:
        """One inode; `children` of a directory stay empty."""
        with _damage_is_typed():
            return self._node(nid)[0]

    def _node(self, nid: int) -> tuple[Node, int]:
        raw, node = self._inode(nid)
        kind = node.mode & 0o170000
        node.xattrs = self._xattrs(raw)
        if kind == stat.S_IFLNK:
            if not 0 < node.size <= MAX_TARGET_BYTES:
                raise IntegrityError(f"cannot read layer: a link target of {node.size} bytes")
            node.target = self._content(raw, node.size)
        elif kind in (stat.S_IFCHR, stat.S_IFBLK):
            node.rdev = os.makedev(*disk.decode_device(raw.union))
        elif kind == stat.S_IFREG and node.size:
            node.runs = self._runs(raw, node.size)
        return node, raw.number

    def _inode(self, nid: int) -> tuple[_Raw, Node]:
        offset = nid * SLOT_SIZE
        self._slice(offset, disk.EXTENDED_INODE.size if self._slice(offset, 2)[0] & 1 else disk.COMPACT_INODE.size)
        layout = self._image[offset]
        if layout & 1:
            fields = disk.EXTENDED_INODE.unpack_from(self._image, offset)
            _, slots, mode, _, size, union, number, uid, gid, seconds, nanoseconds, links, _ = fields
            mtime = seconds * 1_000_000_000 + nanoseconds
            area = offset + disk.EXTENDED_INODE.size
        else:
            fields = disk.COMPACT_INODE.unpack_from(self._image, offset)
            _, slots, mode, links, size, _, union, number, uid, gid, _ = fields
            mtime = self._epoch_ns
            area = offset + disk.COMPACT_INODE.size
        node = Node(mode, uid=uid, gid=gid, mtime_ns=mtime)
        node.size = size
        node.nlink = links
        behind = area + (disk.XATTR_HEADER.size + 4 * (slots - 1) if slots else 0)
        return _Raw(nid, layout >> 1, union, number, area, behind), node

    def _content(self, raw: _Raw, size: int) -> bytes:
        """Bytes that the image itself holds: of a directory or a link."""
        start = raw.union * BLOCK_SIZE
        if raw.layout == disk.LAYOUT_PLAIN:
            return bytes(self._slice(start, size))
        if raw.layout != disk.LAYOUT_INLINE:
            raise IntegrityError(f"cannot read layer: inode {raw.nid} has layout {raw.layout}")
        tail = (size - 1) % BLOCK_SIZE + 1
        if raw.behind // BLOCK_SIZE != (raw.behind + tail - 1) // BLOCK_SIZE:
            raise IntegrityError(f"cannot read layer: what is inline in inode {raw.nid} crosses a block")
        whole = bytes(self._slice(start, size - tail)) if size > tail else b""
        return whole + bytes(self._slice(raw.behind, tail))

    def _runs(self, raw: _Raw, size: int) -> tuple[Run, ...]:
        if raw.layout != disk.LAYOUT_CHUNKS or not raw.union & disk.CHUNK_FORMAT_INDEXES:
            raise IntegrityError(f"cannot read layer: file {raw.nid} is not in chunks")
        bits = raw.union & disk.MAX_CHUNK_BITS
        blocks = (size + BLOCK_SIZE - 1) >> BLOCK_BITS
        position = disk.round_up(raw.behind, disk.CHUNK_INDEX.size)
        table = self._slice(position, disk.CHUNK_INDEX.size * -(-blocks >> bits))
        runs: list[Run] = []
        for number, (_, device, block) in enumerate(disk.CHUNK_INDEX.iter_unpack(table)):
            if block == disk.NULL_BLOCK:
                continue
            first = number << bits
            count = min(1 << bits, blocks - first)
            if device != disk.DATA_DEVICE or block + count > self.data_blocks:
                raise IntegrityError(f"cannot read layer: file {raw.nid} has a chunk at {device}:{block}")
            block += self._data_at
            if runs and runs[-1][0] + runs[-1][2] == first and runs[-1][1] + runs[-1][2] == block:
                runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + count)
            else:
                runs.append((first, block, count))
        return tuple(runs)

    def _xattrs(self, raw: _Raw) -> Xattrs:
        if raw.area == raw.behind:
            return ()
        area = self._slice(raw.area, raw.behind - raw.area)
        _, shared, _ = disk.XATTR_HEADER.unpack_from(area)
        found: list[tuple[bytes, bytes]] = []
        position = disk.XATTR_HEADER.size
        for _ in range(shared):
            start = self._shared + 4 * int.from_bytes(area[position : position + 4], "little")
            pair = self._shared_pairs.get(start)
            if pair is None:
                pair = self._shared_pairs[start] = self._xattr(self._image[start:])[0]
            found.append(pair)
            position += 4
        while position < len(area):
            pair, length = self._xattr(area[position:])
            found.append(pair)
            position += length
        if sum(len(name) + len(value) for name, value in found) > MAX_XATTR_BYTES:
            raise IntegrityError(f"cannot read layer: attributes of more than {MAX_XATTR_BYTES} bytes")
        return tuple(sorted(found))

    def _xattr(self, entry: memoryview) -> tuple[tuple[bytes, bytes], int]:
        name_length, prefix, value_length = disk.XATTR_ENTRY.unpack_from(entry)
        start = disk.XATTR_ENTRY.size
        end = start + name_length + value_length
        if end > len(entry):
            raise IntegrityError("cannot read layer: an attribute leaves its area")
        name = _PREFIXES[prefix] + bytes(entry[start : start + name_length])
        return (name, bytes(entry[start + name_length : end])), disk.round_up(end, 4)

    def _slice(self, start: int, length: int) -> memoryview:
        if start + length > len(self._image):
            raise IntegrityError(f"cannot read layer: bytes {start} to {start + length} are outside the image")
        return self._image[start : start + length]


@contextmanager
def _damage_is_typed() -> Iterator[None]:
    """What cannot be unpacked or looked up is damage too."""
    try:
        yield
    except (struct.error, LookupError, ValueError, OverflowError) as error:
        raise IntegrityError(f"cannot read layer: a damaged structure: {error}") from error


def _check_names(directory: bytes, names: list[bytes]) -> None:
    if len(set(names)) != len(names):
        raise IntegrityError(f"cannot read layer: directory {directory!r} has a name twice")
    for name in names:
        if not 0 < len(name) <= MAX_NAME_BYTES or b"/" in name or b"\0" in name:
            raise IntegrityError(f"cannot read layer: {name[:300]!r} is not a name")
    if names and len(directory) + 1 + max(map(len, names)) > MAX_PATH_BYTES:
        raise IntegrityError(f"cannot read layer: a path below {directory[:300]!r} is too long")


def map_image(path: str) -> mmap.mmap:
    """A metadata image as it lies on the disk, mapped as long as somebody has it.

    :raises OSError, ValueError: it cannot be read, or is empty.
    """
    with open(path, "rb", buffering=0) as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def open_image(path: str) -> Image:
    """One that was verified when it came here.

    :raises IntegrityError: it cannot be read.
    """
    try:
        return Image(map_image(path))
    except (OSError, ValueError) as error:
        raise IntegrityError(f"cannot read layer: {path}: {error}", path=path) from error


def read_file(data_fd: int, node: Node) -> Iterator[bytes]:
    """The contents of a regular file from the data file, in pieces of at most 1 MiB."""
    position = 0
    for first, block, count in node.runs:
        yield from _zeros(first * BLOCK_SIZE - position)
        position = first * BLOCK_SIZE
        end = min(position + count * BLOCK_SIZE, node.size)
        offset = block * BLOCK_SIZE - position
        while position < end:
            piece = os.pread(data_fd, min(end - position, 1 << 20), offset + position)
            if not piece:
                raise IntegrityError("cannot read layer: the data file is too short")
            yield piece
            position += len(piece)
    yield from _zeros(node.size - position)


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield bytes(min(count, 1 << 20))
        count -= 1 << 20


def _entries(block: bytes) -> Iterator[tuple[bytes, int]]:
    count = disk.DIRENT.unpack_from(block)[1] // disk.DIRENT.size
    entries = [disk.DIRENT.unpack_from(block, disk.DIRENT.size * i) for i in range(count)]
    for (nid, offset, _, _), following in zip(entries, [*entries[1:], None], strict=True):
        end = following[1] if following is not None else len(block)
        yield bytes(block[offset:end]).rstrip(b"\0"), nid
