"""Stacks of layers that get in each other's way: few names, used again and again with other types."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from layer_trees import noise

from dsec.store.build import build_layer
from dsec.store.local import LocalStore, Taken
from dsec.store.records import LayerRecord
from dsec.store.sources import BytesContent, Entry, HardLink, MemorySource, Opaque, SourceItem, Whiteout
from dsec.store.tree import Node

LayerItems = Callable[[], list[SourceItem]]
"""Makes the items anew, since a build uses them up."""

_NAMES = (b"a", b"b", b"c\xff")
_PATHS = [
    *_NAMES,
    *(one + b"/" + two for one in _NAMES for two in _NAMES),
    *(one + b"/" + two + b"/" + three for one in _NAMES for two in _NAMES for three in _NAMES),
]
_KINDS = ["file"] * 4 + ["directory"] * 4 + ["whiteout"] * 4 + ["opaque"] * 2 + ["link"] * 3
_KINDS += ["symlink", "device", "fifo", "hole", "socket"]
_SIZES = [0, 1, 5000, 70_000, 262_144, 300_001, 150_000]
"""Two of the last lie over the border of a chunk."""

Plan = list[tuple[bytes, str, int]]
"""(path, kind, number) in an order that a source may have."""


@st.composite
def layer_plans(draw: st.DrawFn, kinds: Sequence[str] = tuple(_KINDS), most: int = 12) -> Plan:
    plan: Plan = []
    kind_of: dict[bytes, str] = {}
    linkable: list[bytes] = []
    for _ in range(draw(st.integers(0, most))):
        path, kind = draw(st.sampled_from(_PATHS)), draw(st.sampled_from(kinds))
        parents = [path[:at] for at, byte in enumerate(path) if byte == ord("/")]
        if path in kind_of or any(
            kind_of.get(parent, "directory") not in ("directory", "opaque") for parent in parents
        ):
            continue
        if kind == "link" and not linkable:
            continue
        number = draw(st.integers(0, len(linkable) - 1)) if kind == "link" else draw(st.integers(0, 1 << 20))
        for parent in parents:
            kind_of.setdefault(parent, "directory")
        kind_of[path] = kind
        plan.append((path, kind, number))
        if kind in ("file", "hole", "symlink", "device", "fifo"):
            linkable.append(path)
    return plan


def stacks(most: int = 4) -> st.SearchStrategy[list[Plan]]:
    return st.lists(layer_plans(), min_size=1, max_size=most)


def items(plan: Plan) -> list[SourceItem]:
    found: list[SourceItem] = []
    linkable: list[bytes] = []
    for path, kind, number in plan:
        if kind == "link":
            found.append(HardLink(path, linkable[number]))
            continue
        if kind == "whiteout":
            found.append(Whiteout(path))
            continue
        if kind == "opaque":
            found.append(Opaque(path))
            continue
        found.append(_entry(path, kind, number))
        if kind in ("file", "hole", "symlink", "device", "fifo"):
            linkable.append(path)
    return found


_TYPES = {
    "file": stat.S_IFREG,
    "hole": stat.S_IFREG,
    "directory": stat.S_IFDIR,
    "symlink": stat.S_IFLNK,
    "device": stat.S_IFCHR,
    "fifo": stat.S_IFIFO,
    "socket": stat.S_IFSOCK,
}


def _entry(path: bytes, kind: str, number: int) -> Entry:
    options: dict[str, Any] = {"uid": number % 3, "gid": number % 5, "mtime_ns": number * 1_000_000_007}
    if kind == "symlink":
        options["target"] = b"../" * (number % 4) + b"x"
    elif kind == "device":
        options["rdev"] = os.makedev(1, 1 + number % 9)
    if kind in ("file", "directory") and number % 4 == 0:
        options["xattrs"] = ((b"user.note", str(number).encode()),)
    node = Node(_TYPES[kind] | (0o777 if kind == "symlink" else (0o600, 0o644, 0o755)[number % 3]), **options)
    if kind == "hole":
        return Entry(path, node, BytesContent(b"", size=5000 + number, extents=()))
    if kind == "file":
        return Entry(path, node, BytesContent(noise(_SIZES[number % len(_SIZES)], number % 3)))
    return Entry(path, node)


def take(store: LocalStore, taken: Taken, source: Sequence[SourceItem]) -> LayerRecord:
    with store.build_directory() as directory:
        return taken.take(build_layer(MemorySource(source), directory, "layer"))
