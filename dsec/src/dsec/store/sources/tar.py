"""A tar stream as a source: v7, ustar, GNU and pax, plain or compressed, read once from front to end.

Nothing in a tar is trusted. A name that is absolute or has `..` in it, a member below a symbolic link, a hard link to
something that the tar has not brought before, a damaged header or an early end is an `InvalidArgumentError` that names
the member. The parser is our own: the standard library's takes 33 µs a member and repairs what must be refused here.

Memory: one buffer of 256 KiB, the decoder's own (see `compression`), and headers up to the bounds below.
"""

from __future__ import annotations

import base64
import io
import os
import stat
from collections.abc import Generator
from typing import Final, Literal
from urllib.parse import unquote_to_bytes

from dsec.store.sources.base import Entry, Extent, HardLink, Opaque, SourceItem, Whiteout
from dsec.store.sources.compression import BUFFER_BYTES, ByteInput, DecompressionError, as_plain, open_plain
from dsec.store.sources.tar_header import (
    BLOCK,
    ZERO_BLOCK,
    Header,
    HeaderError,
    Records,
    member_path,
    named,
    parse_header,
    parse_records,
    record_integer,
    record_time,
)
from dsec.store.sources.tar_sparse import check_extents, is_pax_1, old_map, pax_1_map, pax_map
from dsec.store.tree import MAX_PATH_BYTES, Node, Xattrs
from libdsec.protocol.errors import InvalidArgumentError

MAX_PAX_BYTES: Final = 8 * 1024 * 1024
"""One extended header; it holds names, attributes and perhaps a sparse map."""
MAX_LONG_NAME_BYTES: Final = 64 * 1024
MAX_TRAILER_BYTES: Final = 64 * 1024 * 1024
"""Behind the end mark. Read and dropped, so that a compressed stream is checked to its end."""

_TYPES: Final = {
    b"0": stat.S_IFREG,
    b"\0": stat.S_IFREG,
    b"7": stat.S_IFREG,
    b"S": stat.S_IFREG,
    b"2": stat.S_IFLNK,
    b"3": stat.S_IFCHR,
    b"4": stat.S_IFBLK,
    b"5": stat.S_IFDIR,
    b"6": stat.S_IFIFO,
    b"D": stat.S_IFDIR,
}
_WITH_DATA: Final = (b"0", b"\0", b"7", b"S", b"D")
_XATTR: Final = b"SCHILY.xattr."
_XATTR_ENCODED: Final = b"LIBARCHIVE.xattr."
_SELINUX: Final = b"RHT.security.selinux"
_TEXT_ACL: Final = b"SCHILY.acl."
_ATTRIBUTES: Final = (_XATTR, _XATTR_ENCODED, _SELINUX, _TEXT_ACL)

_WHITEOUT: Final = b".wh."
_WHITEOUT_META: Final = b".wh..wh."
_WHITEOUT_OPAQUE: Final = b".wh..wh..opq"


class _Data:
    """The stored bytes of the member being read."""

    __slots__ = ("_member", "_reader", "extents", "left", "size")

    def __init__(
        self, reader: io.BufferedReader, member: bytes, stored: int, size: int, extents: list[Extent] | None
    ) -> None:
        self._reader = reader
        self._member = member
        self.left = stored
        self.size = size
        self.extents = extents

    def readinto(self, view: memoryview) -> int:
        if len(view) > self.left:
            view = view[: self.left]
        try:
            got = self._reader.readinto(view)
        except DecompressionError as error:
            raise named(self._member, str(error)) from error
        if not got and len(view):
            raise named(self._member, "is cut off: the tar ends early")
        self.left -= got
        return got


class TarSource:
    """Read a tar from `file`, a binary file object at the tar's first byte; it is neither sought in nor closed.

    `whiteouts="oci"` reads `.wh.NAME` as the removal of NAME from lower layers and `.wh..wh..opq` as an opaque
    directory, as layers of container images have them; `"plain"` leaves such names alone. `end_mark=False` accepts a
    tar that stops after a whole member without the two blocks of zeros that end one: only for input whose completeness
    is known otherwise, by a digest. `compressed=False` does not look whether it is.
    """

    def __init__(
        self,
        file: ByteInput,
        *,
        whiteouts: Literal["plain", "oci"] = "plain",
        end_mark: bool = True,
        compressed: bool = True,
    ) -> None:
        self._file = file
        self._open = open_plain if compressed else as_plain
        self._whiteouts = whiteouts == "oci"
        self._end_mark = end_mark

    def entries(self) -> Generator[SourceItem, None, None]:
        """See `Source.entries`."""
        reader = _Reader(self._open(self._file), self._end_mark)
        last = b""
        while True:
            member = reader.next_member(last)
            if member is None:
                return
            last = member.raw_name
            try:
                item = member.item(reader)
            except HeaderError as error:
                raise named(last, str(error)) from error
            if self._whiteouts and item is not None:
                item = _whiteout(item)
            if item is not None:
                yield item
            reader.skip_rest(last)


class _Member:
    """A header with what the extended headers before it say."""

    __slots__ = ("header", "link", "raw_name", "records", "repeated")

    def __init__(self, header: Header, records: Records, repeated: list[tuple[bytes, bytes]]) -> None:
        self.header = header
        self.records = records
        self.repeated = repeated
        self.raw_name = records.get(b"GNU.sparse.name") or records.get(b"path") or header.name
        self.link = records.get(b"linkpath") or header.link

    def item(self, reader: _Reader) -> SourceItem | None:
        header = self.header
        kind = header.kind
        if kind == b"V":
            return None
        if len(self.raw_name) > 2 * MAX_PATH_BYTES:
            raise HeaderError(f"has a name of {len(self.raw_name)} bytes")
        path = member_path(self.raw_name)
        if kind == b"1":
            return HardLink(path, member_path(self.link, "link target"))
        file_type = _TYPES.get(kind)
        if file_type is None:
            raise HeaderError(f"is of type {kind!r}, which a layer cannot hold")
        if file_type == stat.S_IFREG and self.raw_name.endswith(b"/"):
            file_type = stat.S_IFDIR
        node = self._node(file_type)
        if file_type == stat.S_IFLNK:
            node.target = self.link
        elif file_type in (stat.S_IFCHR, stat.S_IFBLK):
            if header.major >= 1 << 32 or header.minor >= 1 << 32 or min(header.major, header.minor) < 0:
                raise HeaderError(f"has the device number {header.major}:{header.minor}")
            node.rdev = os.makedev(header.major, header.minor)
        if file_type != stat.S_IFREG:
            return Entry(path, node)
        return Entry(path, node, self._content(reader))

    def _node(self, file_type: int) -> Node:
        header = self.header
        records = self.records
        if not records:
            return Node(
                file_type | header.mode & 0o7777, uid=header.uid, gid=header.gid, mtime_ns=header.mtime * 1_000_000_000
            )
        return Node(
            file_type | header.mode & 0o7777,
            uid=record_integer(records, b"uid", header.uid),
            gid=record_integer(records, b"gid", header.gid),
            mtime_ns=record_time(records, b"mtime", header.mtime),
            xattrs=_xattrs(records),
        )

    def _content(self, reader: _Reader) -> _Data | None:
        data = reader.data
        sparse: tuple[int, list[Extent]] | None = None
        if self.header.kind == b"S":
            sparse = old_map(self.header, lambda: reader.block(self.raw_name))
        elif self.records:
            sparse = pax_map(self.records, self.repeated)
            if sparse is None and is_pax_1(self.records):
                size, extents, used = pax_1_map(self.records, lambda: reader.block(self.raw_name))
                data.left -= used
                sparse = size, extents
        if sparse is not None:
            data.size = sparse[0]
            data.extents = check_extents(sparse[1], data.size, data.left)
        return data if data.size else None


class _Reader:
    """Goes from member to member."""

    def __init__(self, stream: io.BufferedReader, end_mark: bool) -> None:
        self._stream = stream
        self._end_mark = end_mark
        self._global: Records = {}
        self._padding = 0
        self.data = _Data(stream, b"", 0, 0, None)

    def next_member(self, last: bytes) -> _Member | None:
        """The next member with its extended headers, None at the end. `last` is the name before it."""
        records: Records = {}
        repeated: list[tuple[bytes, bytes]] = []
        pending = False
        while True:
            block = self._read(BLOCK, last)
            if block == ZERO_BLOCK:
                if pending:
                    raise named(last, "is followed by an extended header without a member")
                self._drain(last)
                return None
            if len(block) < BLOCK:
                if block or pending or self._end_mark:
                    raise named(last, "is the last before the tar ends without an end mark" if last else "is missing")
                return None
            try:
                header = parse_header(block)
                kind = header.kind
                if kind in b"LK":
                    key = b"path" if kind == b"L" else b"linkpath"
                    records[key] = self._extended(header, MAX_LONG_NAME_BYTES, last).partition(b"\0")[0]
                elif kind in b"xX":
                    repeated = parse_records(self._extended(header, MAX_PAX_BYTES, last))
                    records.update(repeated)
                elif kind == b"g":
                    self._global.update(parse_records(self._extended(header, MAX_PAX_BYTES, last)))
                    continue
                else:
                    return self._member(header, records, repeated)
            except HeaderError as error:
                raise named(last, f"is followed by a member that {error}" if last else str(error)) from error
            pending = True

    def _member(self, header: Header, records: Records, repeated: list[tuple[bytes, bytes]]) -> _Member:
        if self._global:
            records = {**self._global, **records}
        if records:
            # an empty value takes back what was said before, except for attributes, where it is a value
            records = {k: v for k, v in records.items() if v or k.startswith((_XATTR, _XATTR_ENCODED))}
        member = _Member(header, records, repeated)
        size = 0
        if header.kind in _WITH_DATA:
            size = record_integer(records, b"size", header.size) if records else header.size
        self._padding = -size % BLOCK
        self.data = _Data(self._stream, member.raw_name, size, size, None)
        return member

    def _extended(self, header: Header, limit: int, last: bytes) -> bytes:
        if header.size > limit:
            raise HeaderError(f"has an extended header of {header.size} bytes, the most is {limit}")
        padded = header.size + -header.size % BLOCK
        data = self._read(padded, last)
        if len(data) < padded:
            raise HeaderError("is cut off: the tar ends early")
        return data[: header.size]

    def block(self, member: bytes) -> bytes:
        """The next block, a part of `member`'s sparse map."""
        block = self._read(BLOCK, member)
        if len(block) < BLOCK:
            raise named(member, "is cut off: the tar ends early")
        return block

    def skip_rest(self, member: bytes) -> None:
        """Go to the next header over what was not read of `member`."""
        left = self.data.left + self._padding
        if left < 0:
            raise named(member, "has a sparse map longer than its data")
        while left:
            got = len(self._read(min(left, BUFFER_BYTES), member))
            if not got:
                raise named(member, "is cut off: the tar ends early")
            left -= got
        self.data.left = self._padding = 0

    def _read(self, size: int, member: bytes) -> bytes:
        try:
            return self._stream.read(size)
        except DecompressionError as error:
            raise named(member, str(error)) from error

    def _drain(self, last: bytes) -> None:
        left = MAX_TRAILER_BYTES
        while got := len(self._read(BUFFER_BYTES, last)):
            left -= got
            if left < 0:
                raise named(last, f"is followed by more than {MAX_TRAILER_BYTES} bytes behind the end mark")


def _xattrs(records: Records) -> Xattrs:
    found: dict[bytes, bytes] = {}
    for key, value in records.items():
        if not key.startswith(_ATTRIBUTES):
            continue
        if key.startswith(_XATTR):
            # GNU tar writes the two characters that a key cannot hold in this form
            name = key[len(_XATTR) :].replace(b"%3D", b"=").replace(b"%25", b"%")
            found[name] = value
        elif key.startswith(_XATTR_ENCODED):
            name = unquote_to_bytes(key[len(_XATTR_ENCODED) :])
            try:
                # written without padding by some, with it by others
                decoded = base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
            except ValueError as error:
                raise HeaderError(f"has an attribute {name!r} that is not base64") from error
            found.setdefault(name, decoded)
        elif key == _SELINUX:
            found.setdefault(b"security.selinux", value)
        elif key.startswith(_TEXT_ACL):
            raise HeaderError("has an access control list as text; write it as SCHILY.xattr.system.posix_acl_*")
    return tuple(sorted(found.items()))


def _whiteout(item: SourceItem) -> SourceItem | None:
    directory, slash, name = item.path.rpartition(b"/")
    if not name.startswith(_WHITEOUT):
        return item
    if name == _WHITEOUT_OPAQUE:
        return Opaque(directory)
    if name.startswith(_WHITEOUT_META):
        return None
    hidden = name[len(_WHITEOUT) :]
    if hidden in (b"", b".", b".."):
        raise InvalidArgumentError(f"cannot read tar: {name!r} removes no name", member=name.decode("utf-8", "replace"))
    return Whiteout(directory + slash + hidden)
