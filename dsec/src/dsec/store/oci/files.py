"""Files of a layout by their names, whether they lie in a directory or in a tar, which is not unpacked."""

from __future__ import annotations

import os
import posixpath
import stat
from typing import Final, NamedTuple, Protocol

from dsec.store.sources.tar_header import (
    BLOCK,
    ZERO_BLOCK,
    HeaderError,
    member_path,
    parse_header,
    parse_records,
    record_integer,
)
from libdsec.protocol.errors import FileOperationError, InvalidArgumentError

from .manifest import broken

MAX_MEMBERS: Final = 100_000
MAX_EXTENDED_BYTES: Final = 1024 * 1024
MAX_LINKS: Final = 8


class Files(Protocol):
    def open(self, name: str) -> Piece | None:
        """The file of that name below the layout's root, None where there is none; to be closed.

        :raises InvalidArgumentError: it is no regular file.
        :raises FileOperationError: it cannot be read.
        """

    def close(self) -> None: ...


class Piece:
    """Bytes of an open file, read at their offset: `Bytes` of `blobs`."""

    def __init__(self, descriptor: int, offset: int, size: int, path: str) -> None:
        """Takes `descriptor` over."""
        self._descriptor = descriptor
        self._at = offset
        self._left = size
        self._path = path
        self.size = size

    def readinto(self, view: memoryview, /) -> int:
        if self._left < len(view):
            view = view[: self._left]
        try:
            got = os.preadv(self._descriptor, [view], self._at)
        except OSError as error:
            raise _unreadable(self._path, error) from None
        self._at += got
        self._left -= got
        return got

    def read_all(self, most: int) -> bytes:
        """:raises InvalidArgumentError: there are more than `most` bytes."""
        if self.size > most:
            raise broken(self._path, f"a document in it has {self.size} bytes, the most is {most}")
        content = bytearray(self.size)
        view = memoryview(content)
        filled = 0
        while filled < len(content) and (got := self.readinto(view[filled:])):
            filled += got
        return bytes(content[:filled])

    def close(self) -> None:
        os.close(self._descriptor)


class DirectoryFiles:
    def __init__(self, path: str) -> None:
        if not os.path.isdir(path):
            raise InvalidArgumentError(f"cannot read {path}: there is no such directory", field="source")
        self._path = path

    def open(self, name: str) -> Piece | None:
        path = os.path.join(self._path, name)
        descriptor = _open(path, missing=True)
        if descriptor is None:
            return None
        return Piece(descriptor, 0, os.fstat(descriptor).st_size, path)

    def close(self) -> None:
        pass


class _Member(NamedTuple):
    offset: int
    size: int


class TarFiles:
    """A plain tar, its members known by where they lie."""

    def __init__(self, path: str) -> None:
        """:raises InvalidArgumentError: no such file, or no plain tar."""
        descriptor = _open(path, missing=False)
        assert descriptor is not None
        self._path = path
        self._descriptor = descriptor
        self._members: dict[str, _Member] = {}
        self._links: dict[str, str] = {}
        try:
            self._index(os.fstat(descriptor).st_size)
        except BaseException:
            os.close(descriptor)
            raise

    def open(self, name: str) -> Piece | None:
        for _ in range(MAX_LINKS):
            member = self._members.get(name)
            if member is not None:
                return Piece(os.dup(self._descriptor), member.offset, member.size, self._path)
            target = self._links.get(name)
            if target is None:
                return None
            name = target
        raise broken(self._path, f"{name[:200]!r} in it is a link to a link to a link …")

    def close(self) -> None:
        os.close(self._descriptor)

    def _index(self, size: int) -> None:
        position = 0
        long_name = long_link = b""
        records: dict[bytes, bytes] = {}
        while position < size:
            block = self._read(position, BLOCK)
            if block == ZERO_BLOCK:
                return
            try:
                header = parse_header(block)
                position += BLOCK
                stored = record_integer(records, b"size", header.size)
                if header.kind in b"LKx" and header.size <= MAX_EXTENDED_BYTES:
                    data = self._read(position, header.size)
                    if header.kind == b"L":
                        long_name = data.partition(b"\0")[0]
                    elif header.kind == b"K":
                        long_link = data.partition(b"\0")[0]
                    else:
                        records = dict(parse_records(data))
                    stored = header.size
                elif header.kind in b"g":
                    stored = header.size
                else:
                    name = records.get(b"path") or long_name or header.name
                    link = records.get(b"linkpath") or long_link or header.link
                    self._add(member_path(name), header.kind, link, _Member(position, stored))
                    long_name = long_link = b""
                    records = {}
                    if header.kind in b"123456":
                        stored = 0
            except HeaderError as error:
                raise broken(self._path, f"it is no plain tar: at byte {position} a member {error}") from None
            position += stored + -stored % BLOCK
        if position > size:
            raise broken(self._path, "it is cut off")

    def _add(self, path: bytes, kind: bytes, link: bytes, member: _Member) -> None:
        if len(self._members) + len(self._links) >= MAX_MEMBERS:
            raise broken(self._path, f"it has more than {MAX_MEMBERS} members")
        name = os.fsdecode(path)
        self._members.pop(name, None)
        self._links.pop(name, None)
        if kind in (b"0", b"\0", b"7"):
            self._members[name] = member
        elif kind == b"1":
            self._links[name] = os.fsdecode(member_path(link, "link target"))
        elif kind == b"2":
            # docker names a layer that two images share by a link beside its directory
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), os.fsdecode(link)))
            if not target.startswith(("/", "..")):
                self._links[name] = target

    def _read(self, position: int, size: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, position)
        except OSError as error:
            raise _unreadable(self._path, error) from None
        if len(data) < size:
            compressed = position == 0 and data[:2] in (b"\x1f\x8b", b"\x28\xb5")
            raise broken(self._path, "it is compressed; unpack it first" if compressed else "it is cut off")
        return data


def _open(path: str, *, missing: bool) -> int | None:
    try:
        # a pipe without a writer would hold the open for ever
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if missing:
            return None
        raise InvalidArgumentError(f"cannot read {path}: there is no such file", field="source") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidArgumentError(f"cannot read {path}: it is no regular file", field="source")
    return descriptor


def _unreadable(path: str, error: OSError) -> FileOperationError:
    return FileOperationError(f"cannot read {path}: {error.strerror}", path=path, errno=error.errno or 0)
