"""What overlayfs writes into an upper, told from what the sandbox wrote.

Whiteouts are character devices 0:0; an opaque directory carries `trusted.overlay.opaque`. No sandbox can make either by
itself: overlayfs refuses such a device, and the kernel such an attribute to all without a capability of the host's.
What it can make are `user.overlay.*` attributes, which our overlays, not being mounted for them, take for data like any
other, and so do we. Redirects and files without content (`metacopy`) are switched off; where one is found nonetheless
its content lies elsewhere, and nothing true can be packed.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import Final

from dsec.store.rules import OVERLAY_PREFIX
from dsec.store.tree import OPAQUE_XATTR, Node, invalid

_ELSEWHERE: Final = (b"redirect", b"metacopy", b"whiteout", b"xwhiteouts")
_CAPABILITY: Final = b"security.capability"
_REVISION_2: Final = 0x02000000
_REVISION_3: Final = 0x03000000
_FLAGS: Final = 0x00FFFFFF
_V3: Final = struct.Struct("<I16sI")


def is_whiteout_status(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def check_marks(path: bytes, node: Node) -> None:
    """:raises InvalidArgumentError: what the overlay keeps here lies elsewhere."""
    for name, value in node.xattrs:
        if not name.startswith(OVERLAY_PREFIX):
            continue
        mark = name.removeprefix(OVERLAY_PREFIX)
        if mark in _ELSEWHERE or (name == OPAQUE_XATTR and value != b"y"):
            raise invalid(path, f"the overlay keeps {mark.decode('ascii', 'replace')} here, which it was told not to")


def plain_capability(node: Node, id_base: int) -> None:
    """A capability that counts for the sandbox's own root is one for every root, as in an image."""
    node.xattrs = tuple((name, _capability(name, value, id_base)) for name, value in node.xattrs)


def _capability(name: bytes, value: bytes, id_base: int) -> bytes:
    if name != _CAPABILITY or len(value) != _V3.size:
        return value
    magic, sets, root = _V3.unpack(value)
    if magic & ~_FLAGS != _REVISION_3 or root != id_base:
        return value
    return struct.pack("<I16s", _REVISION_2 | magic & _FLAGS, sets)
