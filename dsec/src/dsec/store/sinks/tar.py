"""A source as a POSIX tar, deterministic: the same entries give the same bytes.

Names may have any bytes; they stand in the headers as they are. Files are written out in full, holes as zeros, but for
plain tars of files with large holes (GNU's sparse form 1.0). What a tar cannot hold is left out (sockets) or refused (a
name that would read as a whiteout, in a layer).
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Final, Literal

from dsec.store.sinks.tar_header import DIRECTORY, END_MARK, KINDS, LINK, REGULAR, SYMLINK, header, padding
from dsec.store.sources.base import Content, Entry, Extent, HardLink, Opaque, Source
from dsec.store.tree import Node, invalid

Piece = bytes | memoryview
Whiteouts = Literal["plain", "oci"]

SPARSE_BYTES: Final = 1024 * 1024
"""Holes of a file that together have so much are left out, where the tar is no layer."""

_BUFFER: Final = 256 * 1024
_ZEROS: Final = bytes(_BUFFER)
_WHITEOUT: Final = b".wh."
_OPAQUE: Final = b".wh..wh..opq"


def tar_pieces(source: Source, *, whiteouts: Whiteouts = "plain") -> Generator[Piece, None, None]:
    """All of `source`; a piece is valid until the next is asked for. `whiteouts="oci"` writes whiteouts and opaque
    directories as layers of container images have them; `"plain"` leaves them out.

    :raises InvalidArgumentError: a layer of a container image cannot have a name that begins with `.wh.`.
    """
    sink = _Sink(whiteouts == "oci")
    with closing(source.entries()) as entries:
        for item in entries:
            if isinstance(item, Entry):
                yield from sink.entry(item)
            elif isinstance(item, HardLink):
                yield from sink.link(item)
            elif whiteouts == "oci":
                yield sink.hidden(item.path, opaque=isinstance(item, Opaque))
    yield END_MARK


def write_tar(source: Source, write: Callable[[Piece], object], *, whiteouts: Whiteouts = "plain") -> None:
    """As `tar_pieces`, each piece given to `write`, which must take all of it."""
    with closing(tar_pieces(source, whiteouts=whiteouts)) as pieces:
        for piece in pieces:
            write(piece)


class _Sink:
    def __init__(self, oci: bool) -> None:
        self._oci = oci
        self._buffer = memoryview(bytearray(_BUFFER))
        self._linkable: dict[bytes, Node] = {}
        """What may have more names: a link's header tells the same of it as the first one's."""
        self._sockets: set[bytes] = set()

    def entry(self, entry: Entry) -> Iterator[Piece]:
        node, path = entry.node, entry.path
        file_type = stat.S_IFMT(node.mode)
        if file_type == stat.S_IFSOCK:
            self._sockets.add(path)
            return
        self._check_name(path)
        content = entry.content
        size = 0 if content is None else content.size
        kind = KINDS[file_type]
        if content is not None and content.extents is not None and self._as_extents(content):
            yield from self._sparse(path, node, content, content.extents)
        else:
            yield header(path or b".", node, kind, size, node.target if kind == SYMLINK else b"")
            if content is not None:
                yield from self._content(path, content)
                yield padding(size)
        if kind != DIRECTORY:
            self._linkable[path] = node

    def link(self, link: HardLink) -> Iterator[Piece]:
        if link.target not in self._sockets:
            self._check_name(link.path)
            yield header(link.path, self._linkable[link.target], LINK, 0, link.target)

    def hidden(self, path: bytes, *, opaque: bool) -> Piece:
        if opaque:
            directory, name = path, _OPAQUE
        else:
            directory, _, name = path.rpartition(b"/")
            name = _WHITEOUT + name
        marker = directory + b"/" + name if directory else name
        return header(marker, Node(stat.S_IFREG), REGULAR)

    def _check_name(self, path: bytes) -> None:
        if self._oci and path.rpartition(b"/")[2].startswith(_WHITEOUT):
            raise invalid(path, "in a container image's layer this name is a whiteout")

    def _as_extents(self, content: Content) -> bool:
        """Whether a file is written without its holes: where that saves much. Layers of container images have no such
        form."""
        if self._oci or content.extents is None:
            return False
        return content.size - sum(length for _, length in content.extents) >= SPARSE_BYTES

    def _sparse(self, path: bytes, node: Node, content: Content, extents: Sequence[Extent]) -> Iterator[Piece]:
        # the last entry is empty and says where the file ends, as GNU tar writes it
        numbers = [len(extents) + 1, *(number for extent in extents for number in extent), content.size, 0]
        table = b"".join(b"%d\n" % number for number in numbers)
        table += padding(len(table))
        size = len(table) + sum(length for _, length in extents)
        yield header(path, node, REGULAR, size, sparse=content.size)
        yield table
        for _, length in extents:
            yield from self._data(path, content, length)
        yield padding(size)

    def _content(self, path: bytes, content: Content) -> Iterator[Piece]:
        position = 0
        for offset, length in content.extents if content.extents is not None else [(0, content.size)]:
            yield from _zeros(offset - position)
            yield from self._data(path, content, length)
            position = offset + length
        yield from _zeros(content.size - position)

    def _data(self, path: bytes, content: Content, left: int) -> Iterator[Piece]:
        while left:
            got = content.readinto(self._buffer[: min(left, _BUFFER)])
            if not got:
                raise invalid(path, f"ends {left} bytes before its size")
            yield self._buffer[:got]
            left -= got


def _zeros(count: int) -> Iterator[Piece]:
    while count:
        yield _ZEROS[: min(count, _BUFFER)]
        count -= min(count, _BUFFER)
