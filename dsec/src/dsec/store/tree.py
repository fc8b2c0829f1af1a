"""The tree of a layer in memory: names, inodes and where each file's data lies, but no data.

Every source yields entries that are put into one `Tree`; the EROFS writer reads nothing else. A `Node` is an inode:
two names that share it are hard links. Paths are bytes, relative to the root, without `.` or `..`; the root is `b""`.

What always holds: a name's parent is a directory of this same tree (never reached through a symbolic link), names
and paths are bounded as below, and a node's `nlink` is the number of its names.

Memory: about 0.5 KB an entry here and as much again while an image is laid out (0.9 KB measured over 300,000 files in
500 directories), so a build of `MAX_ENTRIES` names stays under 4 GB.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from libdsec.protocol.errors import InvalidArgumentError

MAX_NAME_BYTES: Final = 255
MAX_PATH_BYTES: Final = 4095
MAX_TARGET_BYTES: Final = 4095
MAX_ENTRIES: Final = 4_000_000
MAX_FILE_BYTES: Final = 1 << 43
"""8 TiB: the largest chunk an EROFS inode can describe, so that a file without holes needs one index."""
MAX_XATTR_VALUE_BYTES: Final = 65_535
"""EROFS keeps a value's length in 16 bits (the kernel's own limit is one byte more)."""
MAX_XATTR_BYTES: Final = 192 * 1024
"""All names and values of one inode together; EROFS addresses 256 KiB."""

OPAQUE_XATTR: Final = b"trusted.overlay.opaque"
ORIGIN_XATTR: Final = b"trusted.overlay.origin"
"""On a directory, also without a value: overlayfs then looks for whiteouts when it lists it. By itself it does so only
where two layers have the directory; elsewhere the names of whiteouts would be listed, and be nothing when looked at."""

Run = tuple[int, int, int]
"""Blocks of a file that have data: (first block in the file, first block in the data file, number of blocks)."""

Xattrs = tuple[tuple[bytes, bytes], ...]

_TYPE_NAMES: Final = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


class Node:
    """An inode. `mtime_ns` is in nanoseconds since 1970 and may be negative, `mode` carries the file type,
    `rdev` is as `os.makedev` makes it, `target` is a symbolic link's. `size` (bytes) and `runs` belong to regular
    files; what no run covers reads as zeros."""

    __slots__ = ("children", "gid", "mode", "mtime_ns", "nlink", "rdev", "runs", "size", "target", "uid", "xattrs")

    def __init__(
        self,
        mode: int,
        *,
        uid: int = 0,
        gid: int = 0,
        mtime_ns: int = 0,
        xattrs: Xattrs = (),
        rdev: int = 0,
        target: bytes = b"",
    ) -> None:
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.mtime_ns = mtime_ns
        self.xattrs = xattrs
        self.rdev = rdev
        self.target = target
        self.size = 0
        self.runs: tuple[Run, ...] = ()
        self.nlink = 0
        self.children: dict[bytes, Node] | None = {} if mode & 0o170000 == stat.S_IFDIR else None


def type_name(mode: int) -> str:
    """What a mode is of, in a word; "" where it is of nothing, as a damaged image may say."""
    return _TYPE_NAMES.get(stat.S_IFMT(mode), "")


def printable(path: bytes) -> str:
    """A path in words: `/` first, and bytes that are no UTF-8 as `\\xNN`. Control characters stay: who writes to a
    terminal leaves them out."""
    return "/" + path.decode("utf-8", "backslashreplace")


def invalid(path: bytes, why: str) -> InvalidArgumentError:
    """The error of a tree that cannot become a layer; `details` names the member."""
    return InvalidArgumentError(f"cannot build layer: {printable(path)}: {why}", path=printable(path), why=why)


class Tree:
    """A root directory and what is put below it. Missing parents come into being as root's, mode 0755, time 0."""

    def __init__(self) -> None:
        self.root = Node(stat.S_IFDIR | 0o755)
        self.entries = 0
        self.implied: set[bytes] = set()
        """Directories that came into being as missing parents and that nothing has described since: what lower layers
        have at their paths is not hidden, so it is theirs to say what such a directory is like."""
        self._directories: dict[bytes, dict[bytes, Node]] = {b"": _children(self.root)}
        self._hiding: set[bytes] = set()
        self._with_whiteouts: set[bytes] = set()

    def insert(self, path: bytes, node: Node) -> None:
        """Put `node` at `path`, replacing what was there; a directory put on a directory keeps its children.

        Raises `InvalidArgumentError` for a bad name or value, for a parent that is not a directory, and for a
        directory with children that would be hidden by something else.
        """
        _check(path, node)
        if node.children is not None:
            if path in self._hiding:
                make_opaque(node)
            if path in self._with_whiteouts:
                mark_whiteouts(node)
        if not path:
            self._replace_root(node)
            return
        siblings, name = self._place(path)
        old = siblings.get(name)
        if old is not None:
            self.implied.discard(path)
            self._replace(path, old, node)
        else:
            self._count(path)
        siblings[name] = node
        node.nlink += 1
        if node.children is not None:
            self._directories[path] = node.children

    def link(self, path: bytes, target: bytes) -> None:
        """Make `path` another name of the file at `target`, which must be in the tree already."""
        node = self.get(target)
        if node is None:
            raise invalid(path, f"hard link to {printable(target)}, which is not in the tree")
        if node.children is not None:
            raise invalid(path, f"hard link to {printable(target)}, which is a directory")
        siblings, name = self._place(path)
        old = siblings.get(name)
        if old is node:
            return
        if old is not None:
            self._replace(path, old, node)
        else:
            self._count(path)
        siblings[name] = node
        node.nlink += 1

    def hide_below(self, path: bytes) -> None:
        """Let the directory at `path` hide what lower layers have in it (overlayfs: `trusted.overlay.opaque`).

        Holds for a directory that is put there later, too.
        """
        self._siblings(path, path)
        self._hiding.add(path)
        node = self.get(path)
        assert node is not None
        make_opaque(node)

    def hide(self, path: bytes) -> None:
        """Let nothing of lower layers show at `path`: a whiteout (a character device 0:0), or what this tree itself
        has there, before or later; of a directory then only what this tree has in it."""
        if not path:
            raise invalid(path, "the root cannot be hidden")
        self._hiding.add(path)
        self.implied.discard(path)
        node = self.get(path)
        if node is None:
            self.insert(path, Node(stat.S_IFCHR))
            parent = path.rpartition(b"/")[0]
            if parent not in self._with_whiteouts:
                self._with_whiteouts.add(parent)
                directory = self.get(parent)
                assert directory is not None
                mark_whiteouts(directory)
        elif node.children is not None:
            make_opaque(node)

    def get(self, path: bytes) -> Node | None:
        """The node at `path`, or None. Symbolic links are not followed."""
        if not path:
            return self.root
        parent, _, name = path.rpartition(b"/")
        siblings = self._directories.get(parent)
        return None if siblings is None else siblings.get(name)

    def _place(self, path: bytes) -> tuple[dict[bytes, Node], bytes]:
        parent, _, name = path.rpartition(b"/")
        if len(name) > MAX_NAME_BYTES:
            raise invalid(path, f"name of {len(name)} bytes, the most is {MAX_NAME_BYTES}")
        if len(path) > MAX_PATH_BYTES:
            raise invalid(path[:200], f"path of {len(path)} bytes, the most is {MAX_PATH_BYTES}")
        if name in (b"", b".", b"..") or b"\0" in name or path.startswith(b"/"):
            raise invalid(path, f"{name!r} is not a name")
        siblings = self._directories.get(parent)
        return (self._siblings(parent, path) if siblings is None else siblings), name

    def _siblings(self, directory: bytes, member: bytes) -> dict[bytes, Node]:
        """Children of `directory`, made with its missing parents if need be. `member` is for messages."""
        missing: list[bytes] = []
        while (found := self._directories.get(directory)) is None:
            missing.append(directory)
            parent, _, name = directory.rpartition(b"/")
            siblings = self._directories.get(parent)
            old = None if siblings is None else siblings.get(name)
            if old is not None and not (directory in self._hiding and is_whiteout(old)):
                kind = "a symbolic link" if stat.S_ISLNK(old.mode) else "not a directory"
                raise invalid(member, f"lies in or below {printable(directory)}, which is {kind}")
            directory = parent
        for path in reversed(missing):
            self.insert(path, Node(stat.S_IFDIR | 0o755))
            if path not in self._hiding:
                self.implied.add(path)
        return self._directories[missing[0]] if missing else found

    def _replace(self, path: bytes, old: Node, new: Node) -> None:
        if old.children is not None:
            if new.children is not None:
                new.children = old.children
            elif old.children:
                raise invalid(path, "would replace a directory that has entries")
            else:
                del self._directories[path]
        old.nlink -= 1

    def _replace_root(self, node: Node) -> None:
        if node.children is None:
            raise invalid(b"", "the root must be a directory")
        node.children = self.root.children
        self.root = node

    def _count(self, path: bytes) -> None:
        self.entries += 1
        if self.entries > MAX_ENTRIES:
            raise invalid(path, f"more than {MAX_ENTRIES} entries")


def is_whiteout(node: Node) -> bool:
    return stat.S_ISCHR(node.mode) and node.rdev == 0


def is_opaque(node: Node) -> bool:
    return (OPAQUE_XATTR, b"y") in node.xattrs


def make_opaque(node: Node) -> None:
    """Let a directory hide what lower layers have in it."""
    _set_xattr(node, OPAQUE_XATTR, b"y")


def mark_whiteouts(node: Node) -> None:
    """Tell overlayfs that a directory has whiteouts."""
    if all(name != ORIGIN_XATTR for name, _ in node.xattrs):
        _set_xattr(node, ORIGIN_XATTR, b"")


def _set_xattr(node: Node, name: bytes, value: bytes) -> None:
    node.xattrs = (*(pair for pair in node.xattrs if pair[0] != name), (name, value))


def _children(node: Node) -> dict[bytes, Node]:
    assert node.children is not None
    return node.children


def _check(path: bytes, node: Node) -> None:
    kind = node.mode & 0o170000
    if kind == stat.S_IFLNK:
        if not 0 < len(node.target) <= MAX_TARGET_BYTES:
            raise invalid(path, f"link target of {len(node.target)} bytes, allowed are 1 to {MAX_TARGET_BYTES}")
        if b"\0" in node.target:
            raise invalid(path, "link target contains a NUL byte")
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        if os.major(node.rdev) >= 1 << 12 or os.minor(node.rdev) >= 1 << 20:
            raise invalid(path, f"device number {os.major(node.rdev)}:{os.minor(node.rdev)} is too large")
    elif kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFIFO, stat.S_IFSOCK):
        raise invalid(path, f"unknown file type in mode {node.mode:o}")
    if not -(1 << 63) <= node.mtime_ns // 1_000_000_000 < 1 << 63:
        raise invalid(path, "modification time is out of range")
    if node.xattrs:
        _check_xattrs(path, node.xattrs)


def _check_xattrs(path: bytes, xattrs: Xattrs) -> None:
    total = 0
    for name, value in xattrs:
        if not 0 < len(name) <= MAX_NAME_BYTES or b"\0" in name:
            raise invalid(path, f"attribute name of {len(name)} bytes, allowed are 1 to {MAX_NAME_BYTES}")
        if len(value) > MAX_XATTR_VALUE_BYTES:
            raise invalid(path, f"attribute {name!r} of {len(value)} bytes, the most is {MAX_XATTR_VALUE_BYTES}")
        total += len(name) + len(value)
    if total > MAX_XATTR_BYTES:
        raise invalid(path, f"attributes of {total} bytes together, the most is {MAX_XATTR_BYTES}")
    if len({name for name, _ in xattrs}) != len(xattrs):
        raise invalid(path, "the same attribute twice")
