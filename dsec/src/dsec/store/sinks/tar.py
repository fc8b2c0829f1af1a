"""A source as a POSIX tar, deterministic: the same entries give the same bytes.

Names may have any bytes; they stand in the headers as they are. Files are written out in full, holes as zeros. What a
tar cannot hold is left out (sockets) or refused (a name that would read as a whiteout, in a layer).
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from contextlib import closing
from typing import Final, Literal

from dsec.store.sinks.tar_header import DIRECTORY, END_MARK, KINDS, LINK, REGULAR, SYMLINK, header, padding
from dsec.store.sources.base import Content, Entry, HardLink, Opaque, Source
from dsec.store.tree import Node, invalid

Write = Callable[[bytes | memoryview], object]
"""Takes the next bytes of the stream before it returns. What it raises ends the writing and comes out of it."""

_PIECE: Final = 256 * 1024
_ZEROS: Final = bytes(_PIECE)
_WHITEOUT: Final = b".wh."
_OPAQUE: Final = b".wh..wh..opq"


def write_tar(source: Source, write: Write, *, whiteouts: Literal["plain", "oci"] = "plain") -> None:
    """Write all of `source`. `whiteouts="oci"` writes whiteouts and opaque directories as layers of container images
    have them; `"plain"` leaves them out.

    :raises InvalidArgumentError: a layer of a container image cannot have a name that begins with `.wh.`.
    """
    sink = _Sink(write, whiteouts == "oci")
    with closing(source.entries()) as entries:
        for item in entries:
            if isinstance(item, Entry):
                sink.entry(item)
            elif isinstance(item, HardLink):
                sink.link(item)
            elif whiteouts == "oci":
                sink.hide(item.path, opaque=isinstance(item, Opaque))
    write(END_MARK)


class _Sink:
    def __init__(self, write: Write, oci: bool) -> None:
        self._write = write
        self._oci = oci
        self._linked: dict[bytes, Node] = {}
        """Files with several names: a link's header tells of them what the file's own does."""
        self._sockets: set[bytes] = set()

    def entry(self, entry: Entry) -> None:
        node, path = entry.node, entry.path
        file_type = stat.S_IFMT(node.mode)
        if file_type == stat.S_IFSOCK:
            self._sockets.add(path)
            return
        self._check_name(path)
        content = entry.content
        size = 0 if content is None else content.size
        kind = KINDS[file_type]
        self._write(header(path or b".", node, kind, size, node.target if kind == SYMLINK else b""))
        if content is not None:
            self._content(path, content)
            self._write(padding(size))
        if kind != DIRECTORY:
            self._linked[path] = node

    def link(self, link: HardLink) -> None:
        if link.target in self._sockets:
            return
        self._check_name(link.path)
        self._write(header(link.path, self._linked[link.target], LINK, 0, link.target))

    def hide(self, path: bytes, *, opaque: bool) -> None:
        if opaque:
            directory, name = path, _OPAQUE
        else:
            directory, _, name = path.rpartition(b"/")
            name = _WHITEOUT + name
        marker = directory + b"/" + name if directory else name
        self._write(header(marker, Node(stat.S_IFREG), REGULAR))

    def _check_name(self, path: bytes) -> None:
        if self._oci and path.rpartition(b"/")[2].startswith(_WHITEOUT):
            raise invalid(path, "in a container image's layer this name is a whiteout")

    def _content(self, path: bytes, content: Content) -> None:
        buffer = memoryview(bytearray(_PIECE))
        position = 0
        for offset, length in content.extents if content.extents is not None else [(0, content.size)]:
            self._zeros(offset - position)
            left = length
            while left:
                got = content.readinto(buffer[: min(left, _PIECE)])
                if not got:
                    raise invalid(path, f"ends {left} bytes before its size")
                self._write(buffer[:got])
                left -= got
            position = offset + length
        self._zeros(content.size - position)

    def _zeros(self, count: int) -> None:
        while count:
            self._write(_ZEROS[: min(count, _PIECE)])
            count -= min(count, _PIECE)
