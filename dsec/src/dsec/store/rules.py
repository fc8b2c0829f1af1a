"""What a tree from outside must fulfil before it becomes a layer: ids in range, no attributes that speak to overlayfs.

A sandbox's ids are 65,536 in number, so a larger one in an owner, an access control list or a file capability would
have no meaning in it. Such an id is an error unless the caller maps it. `trusted.overlay.*` attributes steer the
overlay that a layer is mounted in (redirects, opaqueness): those of an import are dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from dsec.store.erofs.xattr import supported
from dsec.store.tree import Node, invalid, printable
from libdsec.protocol.errors import InvalidArgumentError

MAX_ID: Final = 65_535

OVERLAY_PREFIX: Final = b"trusted.overlay."
_ACLS: Final = (b"system.posix_acl_access", b"system.posix_acl_default")
_CAPABILITY: Final = b"security.capability"

_ACL_HEADER: Final = struct.Struct("<I")
_ACL_VERSION: Final = 2
_ACL_ENTRY: Final = struct.Struct("<HHI")
_ACL_NAMED: Final = (0x02, 0x08)
"""Tags of entries that name a user or a group; only these hold an id."""

_CAPABILITY_REVISION: Final = 0xFF000000
_CAPABILITY_SIZES: Final = {0x01000000: 12, 0x02000000: 20, 0x03000000: 24}
_ROOT_ID: Final = struct.Struct("<I")
_ROOT_ID_OFFSET: Final = 20

IdMap = Callable[[int], int]
"""Maps an id of the source, of a user or a group, to the layer's."""


class Rules:
    """`remap` is asked about every id, those in range included. `keep_overlay` keeps `trusted.overlay.*`: for trees
    that were made here (an upper), never for an import."""

    def __init__(self, remap: IdMap | None = None, *, keep_overlay: bool = False) -> None:
        self._remap = remap
        self._keep_overlay = keep_overlay

    def apply(self, path: bytes, node: Node) -> None:
        """Change `node` as the rules want it. Raises `InvalidArgumentError` naming the path and the id."""
        uid, gid, remap = node.uid, node.gid, self._remap
        if remap is not None:
            node.uid, node.gid = remap(uid), remap(gid)
        if not (0 <= node.uid <= MAX_ID and 0 <= node.gid <= MAX_ID):
            self._check(path, "owner", node.uid, uid)
            self._check(path, "group", node.gid, gid)
        if node.xattrs:
            node.xattrs = tuple(
                (name, self._value(path, name, value))
                for name, value in node.xattrs
                if self._keep_overlay or not name.startswith(OVERLAY_PREFIX)
            )

    def _id(self, path: bytes, what: str, number: int) -> int:
        mapped = number if self._remap is None else self._remap(number)
        self._check(path, what, mapped, number)
        return mapped

    def _check(self, path: bytes, what: str, mapped: int, number: int) -> None:
        if 0 <= mapped <= MAX_ID:
            return
        where = printable(path)
        after = "" if self._remap is None else f" (mapped from {number})"
        raise InvalidArgumentError(
            f"cannot build layer: {where}: {what} id {mapped}{after} is not in 0–{MAX_ID}; map it explicitly",
            path=where,
            what=what,
            id=mapped,
            limit=MAX_ID,
        )

    def _value(self, path: bytes, name: bytes, value: bytes) -> bytes:
        if not supported(name):
            raise invalid(path, f"attribute {name!r} cannot be kept in a layer")
        if name in _ACLS:
            return self._acl(path, name, value)
        if name == _CAPABILITY:
            return self._capability(path, value)
        return value

    def _acl(self, path: bytes, name: bytes, value: bytes) -> bytes:
        entries = memoryview(value)[_ACL_HEADER.size :]
        if (
            len(value) < _ACL_HEADER.size
            or _ACL_HEADER.unpack_from(value)[0] != _ACL_VERSION
            or len(entries) % _ACL_ENTRY.size
        ):
            raise invalid(path, f"attribute {name!r} is not an access control list")
        parts = [value[: _ACL_HEADER.size]]
        for tag, permissions, number in _ACL_ENTRY.iter_unpack(entries):
            if tag in _ACL_NAMED:
                number = self._id(path, "access control list", number)
            parts.append(_ACL_ENTRY.pack(tag, permissions, number))
        return b"".join(parts)

    def _capability(self, path: bytes, value: bytes) -> bytes:
        revision = int.from_bytes(value[:4], "little") & _CAPABILITY_REVISION
        if _CAPABILITY_SIZES.get(revision) != len(value):
            raise invalid(path, "attribute security.capability is damaged")
        if len(value) < _ROOT_ID_OFFSET + _ROOT_ID.size:
            return value
        (root,) = _ROOT_ID.unpack_from(value, _ROOT_ID_OFFSET)
        return value[:_ROOT_ID_OFFSET] + _ROOT_ID.pack(self._id(path, "capability root", root))
