"""Local directories as tar streams and back. Every byte of a tar from a sandbox is hostile.

Unpacking touches nothing outside the directory whatever the archive says: names are taken apart and opened one
component at a time below the directory's own descriptor, never through a symlink, so neither `..`, absolute names nor
links made by an earlier member lead out. (`tarfile`'s own data filter checks names before it follows them, and has been
led out so.)
"""

from __future__ import annotations

import os
import stat
import tarfile
from typing import IO

import msgspec

from .protocol.errors import FileOperationError, QuotaExceededError, WireError

_LARGEST_HEADER = 1024 * 1024
_COPY = 256 * 1024
ZEROS = bytes(_COPY)
"""What a sparse file reads as. Pieces that are all of it are passed over when they are written."""

_SKIPPED_NAMES = 100
_HEADERS = frozenset(
    (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
)


class Transfer(msgspec.Struct, frozen=True):
    """What an upload or download moved."""

    bytes: int
    """Of file contents, or of the archive where one was written."""
    entries: int
    skipped: int = 0
    """Entries left out: devices, of a download also pipes and links that lead out of the directory."""
    skipped_names: tuple[str, ...] = ()
    """The first hundred of them."""


class _BoundedTarInfo(tarfile.TarInfo):
    """Refuses what would be read into memory as a whole and is too large for any honest name."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _BoundedTarInfo:
        info = super().frombuf(buf, encoding, errors)
        if info.type == tarfile.GNUTYPE_SPARSE or (info.type in _HEADERS and info.size > _LARGEST_HEADER):
            raise WireError(f"cannot unpack the archive: a header of type {info.type!r} and {info.size} bytes")
        return info


def unpack(source: int, directory: str, max_bytes: int) -> Transfer:
    """Read a tar from the descriptor `source`, which it closes, to its end.

    :raises WireError: not a tar, or a name that leads out of the directory.
    :raises FileOperationError: the local file system refused.
    :raises QuotaExceededError: more than `max_bytes` of contents.
    """
    with open(source, "rb", buffering=_COPY) as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_BoundedTarInfo) as archive:
                root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                with _Unpacking(root, max_bytes) as unpacking:
                    while (info := archive.next()) is not None:
                        unpacking.add(info, archive.extractfile(info) if info.isreg() else None)
                        archive.members = []  # type: ignore[attr-defined]  # it would keep every header
                    unpacking.finish()
        except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
            raise WireError(f"cannot unpack the archive: {error}") from None
        except OSError as error:
            raise FileOperationError(
                f"cannot unpack into {directory}: {error.strerror}", path=directory, errno=error.errno
            ) from error
        while stream.read(_COPY):  # the padding after the end
            pass
        return unpacking.transfer()


class _Unpacking:
    def __init__(self, root: int, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries = 0
        self._skipped = 0
        self._skipped_names: list[str] = []
        self._parent: tuple[tuple[str, ...], int] = ((), root)
        self._directory_modes: list[tuple[tuple[str, ...], int]] = []

    def __enter__(self) -> _Unpacking:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget_parent()
        os.close(self._root)

    def transfer(self) -> Transfer:
        return Transfer(self._bytes, self._entries, self._skipped, tuple(self._skipped_names))

    def add(self, info: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        parts = _parts(info.name)
        if content is not None and parts:
            self._file(info, parts, content)
        elif info.isdir():
            self._directory(info, parts)
        elif info.issym() and parts and _stays_inside(parts[:-1], info.linkname):
            parent = self._open_parent(parts[:-1])
            _clear(parent, parts[-1])
            os.symlink(info.linkname, parts[-1], dir_fd=parent)
        elif info.islnk() and parts:
            self._hard_link(info, parts)
        else:
            self._skipped += 1
            if len(self._skipped_names) < _SKIPPED_NAMES:
                self._skipped_names.append(info.name)
            return
        self._entries += 1

    def finish(self) -> None:
        """Directories get their modes last, the deepest first: one may not be writable."""
        for parts, mode in reversed(self._directory_modes):
            os.fchmod(self._open_parent(parts), mode)

    def _file(self, info: tarfile.TarInfo, parts: tuple[str, ...], content: IO[bytes]) -> None:
        if self._bytes + info.size > self._max_bytes:
            raise QuotaExceededError(
                f"cannot unpack {info.name!r}: the contents are more than the limit of {self._max_bytes} bytes",
                limit=self._max_bytes,
            )
        parent = self._open_parent(parts[:-1])
        _clear(parent, parts[-1])
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(parts[-1], flags, 0o600, dir_fd=parent), "wb") as target:
            while piece := content.read(_COPY):
                if piece == ZEROS[: len(piece)]:
                    # a sandbox may say that it has terabytes of nothing: they take no room here either
                    target.seek(len(piece), os.SEEK_CUR)
                else:
                    target.write(piece)
            target.truncate()
            os.fchmod(target.fileno(), info.mode & 0o755 | 0o600)
            os.utime(target.fileno(), (info.mtime, info.mtime))
        self._bytes += info.size

    def _directory(self, info: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
        self._open_parent(parts)
        if parts:
            self._directory_modes.append((parts, info.mode & 0o755 | 0o700))

    def _hard_link(self, info: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
        target = _parts(info.linkname)
        if not target:
            raise WireError(f"cannot unpack {info.name!r}: a hard link to a directory")
        source = os.dup(self._open_parent(target[:-1]))
        try:
            parent = self._open_parent(parts[:-1])
            if target != parts:
                _clear(parent, parts[-1])
                os.link(target[-1], parts[-1], src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    def _open_parent(self, parts: tuple[str, ...]) -> int:
        """The directory of these components, made where it is missing. Valid until the next call."""
        if self._parent[0] == parts:
            return self._parent[1]
        self._forget_parent()
        current = self._root
        for part in parts:
            try:
                following = _enter(current, part)
            finally:
                if current != self._root:
                    os.close(current)
            current = following
        self._parent = (parts, current)
        return current

    def _forget_parent(self) -> None:
        if self._parent[1] != self._root:
            os.close(self._parent[1])
        self._parent = ((), self._root)


def _enter(parent: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        os.mkdir(name, 0o755, dir_fd=parent)
        return os.open(name, flags, dir_fd=parent)


def _clear(parent: int, name: str) -> None:
    """What stands at the name makes room, unless it is a directory."""
    try:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass


def _parts(name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts:
        raise WireError(f"cannot unpack {name!r}: the name leads out of the directory")
    return parts


def _stays_inside(parents: tuple[str, ...], target: str) -> bool:
    """Whether following a symlink in the directory `parents` ends below the root.

    The parents are real directories, so leading `..` are counted; a later `..` could step out of another symlink.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    return not target.startswith("/") and ups <= len(parents) and ".." not in parts[ups:]


def pack(directory: str, sink: int) -> Transfer:
    """Write the tree below `directory` as a tar to the descriptor `sink`, which it closes. Owners are not told,
    devices left out.

    :raises FileOperationError: the local file system refused.
    """
    entries = total = 0
    skipped: list[str] = []

    def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal entries, total
        if info.ischr() or info.isblk():
            skipped.append(info.name)  # no sandbox may make one
            return None
        entries += 1
        total += info.size
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with open(sink, "wb", buffering=0) as stream:
        try:
            with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_COPY) as archive:
                archive.add(directory, ".", filter=anonymous)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise FileOperationError(
                f"cannot read {error.filename or directory}: {error.strerror}", path=directory, errno=error.errno
            ) from error
    return Transfer(total, entries, len(skipped), tuple(skipped[:_SKIPPED_NAMES]))
