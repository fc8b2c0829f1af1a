"""Where every inode, directory block and link target of a metadata image goes.

Inodes are numbered breadth first, names in byte order, so that a directory's children lie together. What is stored
inline (the end of a directory, a link target) must lie in the same block as its inode; when it does not fit into the
rest of the current block, the rest is kept for inodes without anything inline.
"""

from __future__ import annotations

import stat
from collections import Counter
from dataclasses import dataclass
from typing import Final

from dsec.store.erofs.dirent import split_names
from dsec.store.erofs.format import (
    BLOCK_BITS,
    BLOCK_SIZE,
    CHUNK_INDEX,
    COMPACT_INODE,
    EXTENDED_INODE,
    FIRST_INODE_OFFSET,
    LAYOUT_CHUNKS,
    LAYOUT_INLINE,
    LAYOUT_PLAIN,
    MAX_CHUNK_BITS,
    SLOT_SIZE,
    round_up,
)
from dsec.store.erofs.xattr import XattrTable
from dsec.store.tree import Node, Tree

NANOSECONDS: Final = 1_000_000_000


class Inode:
    """A node with its place. `offset` is in bytes from the start of the image (nid × 32), `block` the first of its
    whole blocks in the image, `chunk_bits` log2 of the blocks of one chunk, `chunks` their number. For a directory
    `parent` is the one it lies in, `names` are sorted and `blocks` tell (entries, bytes) of each of its blocks."""

    __slots__ = (
        "area",
        "block",
        "blocks",
        "chunk_bits",
        "chunks",
        "compact",
        "layout",
        "names",
        "nlink",
        "node",
        "number",
        "offset",
        "parent",
        "size",
    )

    def __init__(self, node: Node, number: int, parent: Inode | None) -> None:
        self.node = node
        self.number = number
        self.parent = parent if parent is not None else self
        self.nlink = node.nlink
        self.size = 0
        self.layout = LAYOUT_PLAIN
        self.offset = 0
        self.block = 0
        self.area = b""
        self.compact = False
        self.chunk_bits = 0
        self.chunks = 0
        self.names: list[bytes] = []
        self.blocks: list[tuple[int, int]] = []

    @property
    def head_size(self) -> int:
        """Bytes of the inode itself and its attributes."""
        return (COMPACT_INODE.size if self.compact else EXTENDED_INODE.size) + len(self.area)


@dataclass(slots=True)
class Layout:
    """`inodes` in the order of their numbers; sizes and positions in blocks; `epoch_ns` is the time that compact
    inodes have in common."""

    inodes: list[Inode]
    by_node: dict[int, Inode]
    epoch_ns: int
    xattrs: XattrTable
    shared_block: int
    total_blocks: int


def lay_out(tree: Tree) -> Layout:
    """Give everything in `tree` its place."""
    inodes, by_node = _number(tree)
    times = Counter(inode.node.mtime_ns for inode in inodes)
    most = max(times.values())
    epoch = min(time for time, count in times.items() if count == most)
    xattrs = XattrTable(inode.node.xattrs for inode in inodes if inode.node.xattrs)
    space = _Space()
    whole: list[Inode] = []
    for inode in inodes:
        if _describe(inode, epoch, xattrs, space):
            whole.append(inode)
    block = round_up(space.cursor, BLOCK_SIZE) >> BLOCK_BITS
    for inode in whole:
        inode.block = block
        kept = 1 if inode.layout == LAYOUT_INLINE else 0
        block += ((inode.size + BLOCK_SIZE - 1) >> BLOCK_BITS) - kept
    total = block + (len(xattrs.shared) >> BLOCK_BITS)
    return Layout(inodes, by_node, epoch, xattrs, block, total)


def _number(tree: Tree) -> tuple[list[Inode], dict[int, Inode]]:
    root = Inode(tree.root, 1, None)
    inodes = [root]
    by_node = {id(tree.root): root}
    for inode in inodes:
        children = inode.node.children
        if children is None:
            continue
        subdirectories = 0
        names = sorted(children)
        for name in names:
            node = children[name]
            if id(node) not in by_node:
                child = Inode(node, len(inodes) + 1, inode)
                by_node[id(node)] = child
                inodes.append(child)
                subdirectories += node.children is not None
        inode.nlink = 2 + subdirectories
        inode.names = sorted((*names, b".", b".."))
    return inodes, by_node


class _Space:
    """The region of inodes: a cursor and the gaps left behind it, in bytes."""

    def __init__(self) -> None:
        self.cursor = FIRST_INODE_OFFSET
        self._gaps: list[tuple[int, int]] = []

    def inline(self, need: int) -> int:
        """A place that does not cross a block; `need` is at most a block."""
        rest = -self.cursor % BLOCK_SIZE
        if need > rest > 0:
            self._gaps.append((self.cursor, self.cursor + rest))
            self.cursor += rest
        return self._advance(need)

    def anywhere(self, need: int) -> int:
        """A place that may cross blocks."""
        while self._gaps:
            start, end = self._gaps[-1]
            if end - start >= need:
                self._gaps[-1] = (start + round_up(need, SLOT_SIZE), end)
                return start
            self._gaps.pop()
        return self._advance(need)

    def _advance(self, need: int) -> int:
        start = self.cursor
        self.cursor = start + round_up(need, SLOT_SIZE)
        return start


def _describe(inode: Inode, epoch: int, xattrs: XattrTable, space: _Space) -> bool:
    """Fill in `inode` and take its place; True if it also needs whole blocks."""
    node = inode.node
    kind = node.mode & 0o170000
    if kind == stat.S_IFREG:
        inode.size = node.size
    elif kind == stat.S_IFDIR:
        inode.blocks = split_names(inode.names)
        inode.size = (len(inode.blocks) - 1) * BLOCK_SIZE + inode.blocks[-1][1]
    elif kind == stat.S_IFLNK:
        inode.size = len(node.target)
    if node.xattrs:
        inode.area = xattrs.area(node.xattrs)
    inode.compact = (
        node.mtime_ns == epoch
        and node.uid < 1 << 16
        and node.gid < 1 << 16
        and inode.nlink < 1 << 16
        and inode.size < 1 << 32
    )
    head = inode.head_size
    if kind == stat.S_IFREG and inode.size:
        inode.layout = LAYOUT_CHUNKS
        _choose_chunks(inode)
        inode.offset = space.anywhere(round_up(head, 8) + CHUNK_INDEX.size * inode.chunks)
    elif kind in (stat.S_IFDIR, stat.S_IFLNK):
        tail = (inode.size - 1) % BLOCK_SIZE + 1
        if head + tail <= BLOCK_SIZE:
            inode.layout = LAYOUT_INLINE
            inode.offset = space.inline(head + tail)
            return inode.size > BLOCK_SIZE
        inode.offset = space.anywhere(head)
        return True
    else:
        inode.offset = space.anywhere(head)
    return False


def _choose_chunks(inode: Inode) -> None:
    """The largest chunks in which each is data throughout or a hole throughout."""
    total = (inode.size + BLOCK_SIZE - 1) >> BLOCK_BITS
    edges = 0
    for first, _, count in inode.node.runs:
        edges |= first
        if first + count != total:
            edges |= first + count
    whole = (total - 1).bit_length()
    if edges:
        whole = min(whole, (edges & -edges).bit_length() - 1)
    elif inode.node.runs and inode.node.runs[0][2] != total:
        raise AssertionError("a run from 0 that ends nowhere")
    inode.chunk_bits = min(whole, MAX_CHUNK_BITS)
    inode.chunks = -(-total >> inode.chunk_bits)
