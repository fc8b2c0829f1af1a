"""A directory as a source.

Everything is reached through descriptors of the directories on the way (`openat`, never following a link), so that a
tree whose names change while it is read cannot lead outside. Names come in byte order, a directory's files before
its sub-directories: the same tree gives the same sequence on any file system.

Descriptors: one for each level of the current path up to `MAX_OPEN_LEVELS`, the upper ones are opened again when the
walk returns to them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator

from dsec.store.sources.base import Entry, Extent, HardLink, SourceItem
from dsec.store.tree import MAX_ENTRIES, Node, Xattrs, invalid, printable
from libdsec.protocol.errors import FileOperationError

MAX_OPEN_LEVELS = 64
MAX_EXTENTS = 100_000
"""Of one file; what lies behind is read as data, and its zeros are found while they are copied."""

_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_DIRECTORY = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
LeaveOut = Callable[[bytes, os.stat_result], bool]
"""(path, its status): asked of every name but the root's, in the order of the walk. What it says True of is not
yielded, and neither is anything below it; another name of such a file may be."""

_NO_XATTRS = (errno.ENOTSUP, errno.ENOSYS)


class _FileContent:
    """An open file; `extents` are those of SEEK_DATA and SEEK_HOLE when it has fewer blocks than its size needs."""

    __slots__ = ("_at", "_fd", "_index", "_path", "extents", "size")

    def __init__(self, path: bytes, fd: int, size: int, allocated: int) -> None:
        self._path = path
        self._fd = fd
        self.size = size
        self.extents: list[Extent] | None = None
        self._index = 0
        self._at = 0
        if allocated < size:
            self.extents = _data_extents(fd, size)

    def readinto(self, view: memoryview) -> int:
        try:
            if self.extents is None:
                return os.readv(self._fd, [view])
            return self._read_extent(view)
        except OSError as error:
            raise _refused(self._path, error) from error

    def _read_extent(self, view: memoryview) -> int:
        assert self.extents is not None
        if self._index == len(self.extents):
            return 0
        offset, length = self.extents[self._index]
        got = os.preadv(self._fd, [view[: length - self._at]], offset + self._at)
        self._at += got
        if self._at == length:
            self._index += 1
            self._at = 0
        return got


class DirectorySource:
    """Read the directory at `path` and all below it on the same file system.

    Hard links are found by device and inode number; a link count is the number of names inside the tree. Access and
    change times are not kept. A mount point below `path` is an error (`InvalidArgumentError`): whether it belongs to
    the layer is not for this class to guess.
    """

    def __init__(self, path: str | os.PathLike[str], *, leave_out: LeaveOut | None = None) -> None:
        self._path = os.fspath(path)
        self._leave_out = leave_out

    def entries(self) -> Generator[SourceItem, None, None]:
        """See `Source.entries`. A regular file that becomes shorter while it is read is an error."""
        return _Walk(self._path, self._leave_out).entries()


class _Directory:
    """A directory the walk is in: its descriptor (-1 while closed), identity and sub-directories to visit."""

    __slots__ = ("fd", "identity", "path", "pending")

    def __init__(self, path: bytes, fd: int, identity: tuple[int, int]) -> None:
        self.path = path
        self.fd = fd
        self.identity = identity
        self.pending: list[str] = []


class _Walk:
    def __init__(self, top: str, leave_out: LeaveOut | None) -> None:
        self._top = top
        self._leave_out = leave_out
        self._device = -1
        self._links: dict[tuple[int, int], bytes] = {}
        self._stack: list[_Directory] = []

    def entries(self) -> Generator[SourceItem, None, None]:
        path = b""
        try:
            fd = os.open(self._top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._device = os.fstat(fd).st_dev
            yield self._enter(path, fd)
            yield from self._files()
            while self._stack:
                current = self._stack[-1]
                if not current.pending:
                    self._leave()
                    continue
                name = current.pending.pop()
                path = _join(current.path, os.fsencode(name))
                fd = os.open(name, _OPEN_DIRECTORY, dir_fd=current.fd)
                if self._left_out(path, fd):
                    os.close(fd)
                    continue
                yield self._enter(path, fd)
                yield from self._files()
        except OSError as error:
            raise _refused(path, error) from error
        finally:
            for directory in self._stack:
                if directory.fd >= 0:
                    os.close(directory.fd)
            self._stack.clear()

    def _enter(self, path: bytes, fd: int) -> Entry:
        directory = _Directory(path, fd, (0, 0))
        self._stack.append(directory)
        if len(self._stack) > MAX_OPEN_LEVELS:
            above = self._stack[-MAX_OPEN_LEVELS - 1]
            if above.fd >= 0:
                os.close(above.fd)
                above.fd = -1
        status = os.fstat(fd)
        directory.identity = (status.st_dev, status.st_ino)
        if status.st_dev != self._device:
            raise invalid(path, "is a mount point of another file system")
        return Entry(path, _node(status, _xattrs(fd)))

    def _left_out(self, path: bytes, directory: int) -> bool:
        if self._leave_out is None:
            return False
        try:
            return self._leave_out(path, os.fstat(directory))
        except BaseException:
            os.close(directory)
            raise

    def _leave(self) -> None:
        """Go up one level, opening the parent again by `..` if its descriptor was given back."""
        left = self._stack.pop()
        try:
            if self._stack and self._stack[-1].fd < 0:
                parent = self._stack[-1]
                parent.fd = os.open("..", _OPEN_DIRECTORY, dir_fd=left.fd)
                status = os.fstat(parent.fd)
                if (status.st_dev, status.st_ino) != parent.identity:
                    raise invalid(left.path, "was moved while it was read")
        finally:
            os.close(left.fd)

    def _files(self) -> Iterator[SourceItem]:
        """What the directory just entered holds besides directories; those become its `pending`."""
        here = self._stack[-1]
        prefix = here.path + b"/" if here.path else b""
        directories: list[str] = []
        found: list[tuple[bytes, str, bool]] = []
        with os.scandir(here.fd) as listing:
            for item in listing:
                if item.is_dir(follow_symlinks=False):
                    directories.append(item.name)
                else:
                    found.append((os.fsencode(item.name), item.name, item.is_file(follow_symlinks=False)))
                if len(found) + len(directories) > MAX_ENTRIES:
                    raise invalid(here.path, f"has more than {MAX_ENTRIES} entries")
        directories.sort(key=os.fsencode, reverse=True)
        here.pending = directories
        found.sort()
        for raw, name, regular in found:
            path = prefix + raw
            try:
                if regular:
                    yield from self._regular(path, name, here.fd)
                else:
                    yield from self._special(path, name, here.fd)
            except OSError as error:
                raise _refused(path, error) from error

    def _regular(self, path: bytes, name: str, parent: int) -> Iterator[SourceItem]:
        fd = os.open(name, _OPEN_FILE, dir_fd=parent)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise invalid(path, "changed its type while it was read")
            if self._leave_out is not None and self._leave_out(path, status):
                return
            if status.st_nlink > 1 and (first := self._linked(path, status)) is not None:
                yield HardLink(path, first)
                return
            node = _node(status, _xattrs(fd))
            size = status.st_size
            content = _FileContent(path, fd, size, status.st_blocks * 512) if size else None
            yield Entry(path, node, content)
        finally:
            os.close(fd)

    def _special(self, path: bytes, name: str, parent: int) -> Iterator[SourceItem]:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            raise invalid(path, "changed its type while it was read")
        if self._leave_out is not None and self._leave_out(path, status):
            return
        if status.st_nlink > 1 and (first := self._linked(path, status)) is not None:
            yield HardLink(path, first)
            return
        node = _node(status, _xattrs(f"/proc/self/fd/{parent}/{name}"))
        if stat.S_ISLNK(status.st_mode):
            node.target = os.fsencode(os.readlink(name, dir_fd=parent))
        else:
            node.rdev = status.st_rdev
        yield Entry(path, node)

    def _linked(self, path: bytes, status: os.stat_result) -> bytes | None:
        first = self._links.setdefault((status.st_dev, status.st_ino), path)
        return None if first is path else first


def _join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


def _refused(path: bytes, error: OSError) -> FileOperationError:
    number = error.errno or 0
    why = os.strerror(number) if number else str(error)
    return FileOperationError(f"cannot read {printable(path)}: {why}", path=printable(path), errno=number)


def _node(status: os.stat_result, xattrs: Xattrs) -> Node:
    return Node(status.st_mode, uid=status.st_uid, gid=status.st_gid, mtime_ns=status.st_mtime_ns, xattrs=xattrs)


def _xattrs(where: int | str) -> Xattrs:
    follow = isinstance(where, int)
    try:
        names = os.listxattr(where, follow_symlinks=follow)
    except OSError as error:
        if error.errno in _NO_XATTRS:
            return ()
        raise
    if not names:
        return ()
    return tuple((os.fsencode(name), os.getxattr(where, name, follow_symlinks=follow)) for name in sorted(names))


def _data_extents(fd: int, size: int) -> list[Extent]:
    extents: list[Extent] = []
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        if start >= size:
            break
        full = len(extents) == MAX_EXTENTS - 1
        position = size if full else min(os.lseek(fd, start, os.SEEK_HOLE), size)
        extents.append((start, position - start))
    return extents
