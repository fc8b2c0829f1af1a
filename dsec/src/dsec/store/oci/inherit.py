"""Directories that a layer has names in but does not describe.

Tools may leave a directory out of a layer's tar when nothing of it changed but what is in it. Unpacked over the lower
layers it stays as it was; in an overlay the upper layer's directory is the one that counts. So it is made like the one
below, in the layer's metadata image, which is written anew; the data file stays.
"""

from __future__ import annotations

import dataclasses
import hashlib
import mmap
import os
from collections.abc import Sequence
from typing import Final

from dsec.store.build import LayerBuild
from dsec.store.digest import layer_digest
from dsec.store.erofs.format import BLOCK_SIZE
from dsec.store.erofs.metadata import build_metadata
from dsec.store.erofs.reader import Image
from dsec.store.rules import OVERLAY_PREFIX
from dsec.store.tree import Node, Tree, invalid, is_opaque, is_whiteout
from libdsec.protocol.errors import IntegrityError

SUFFIX: Final = ".inherited"

_Place = tuple[Image, int]
_At = list[_Place] | Node | None
"""What a stack has at a path: the directories that an overlay shows as one, the highest first; something else; or
nothing."""


def inherit(build: LayerBuild, below: Sequence[str]) -> LayerBuild:
    """The layer with its implied directories as they are in the layers below, whose metadata images are given, lowest
    first. The same layer where that changes nothing.

    :raises InvalidArgumentError: such a directory is no directory below.
    """
    stack = _Stack(below)
    described = {path: node for path in build.implied if (node := stack.directory(path)) is not None}
    if not described:
        return build
    tree = Tree()
    tree.root = _read(build, described)
    image, inodes = build_metadata(tree, build.data_size // BLOCK_SIZE, b"".join(build.chunk_digests))
    with open(build.metadata_path + SUFFIX, "xb") as file:
        file.write(image)
        file.flush()
        os.fsync(file.fileno())
    os.rename(build.metadata_path + SUFFIX, build.metadata_path)
    digest = hashlib.sha256(image).digest()
    return dataclasses.replace(
        build,
        metadata_size=len(image),
        metadata_digest=digest,
        layer_digest=layer_digest(digest, build.chunk_digests),
        inodes=inodes,
    )


class _Stack:
    def __init__(self, below: Sequence[str]) -> None:
        images = [Image(_mapped(path)) for path in reversed(below)]
        self._at: dict[bytes, _At] = {b"": [(image, image.root_nid) for image in images]}
        self._listed: dict[tuple[int, int], dict[bytes, int]] = {}

    def directory(self, path: bytes) -> Node | None:
        """The directory that the stack shows at `path`, None where it shows nothing."""
        found = self._look(path)
        if isinstance(found, Node):
            raise invalid(path, "names lie in it, but in the layers below it is no directory")
        return found[0][0].node(found[0][1]) if found else None

    def _look(self, path: bytes) -> _At:
        if path not in self._at:
            parent, _, name = path.rpartition(b"/")
            above = self._look(parent)
            self._at[path] = self._merged(above, name) if isinstance(above, list) else None
        return self._at[path]

    def _merged(self, directories: list[_Place], name: bytes) -> _At:
        merged: list[_Place] = []
        for image, nid in directories:
            child = self._list(image, nid).get(name)
            if child is None:
                continue
            node = image.node(child)
            if node.children is None:
                return merged or (None if is_whiteout(node) else node)
            merged.append((image, child))
            if is_opaque(node):
                break
        return merged or None

    def _list(self, image: Image, nid: int) -> dict[bytes, int]:
        key = (id(image), nid)
        if key not in self._listed:
            self._listed[key] = dict(image.list(nid))
        return self._listed[key]


def _read(build: LayerBuild, described: dict[bytes, Node]) -> Node:
    """The layer's tree, with these directories as described."""
    directories: dict[bytes, dict[bytes, Node]] = {}
    root: Node | None = None
    for path, node, _ in Image(_mapped(build.metadata_path)).walk():
        node.nlink = 0
        if root is None:
            root = node
        else:
            parent, _, name = path.rpartition(b"/")
            directories[parent][name] = node
        if node.children is not None:
            directories[path] = node.children
        if (like := described.get(path)) is not None:
            _describe(node, like)
    assert root is not None
    for children in directories.values():
        for node in children.values():
            node.nlink += 1
    return root


def _describe(node: Node, like: Node) -> None:
    node.mode, node.uid, node.gid, node.mtime_ns = like.mode, like.uid, like.gid, like.mtime_ns
    own = [pair for pair in node.xattrs if pair[0].startswith(OVERLAY_PREFIX)]
    node.xattrs = (*(pair for pair in like.xattrs if not pair[0].startswith(OVERLAY_PREFIX)), *own)


def _mapped(path: str) -> mmap.mmap:
    try:
        with open(path, "rb", buffering=0) as file:
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise IntegrityError(f"cannot read layer: {path}: {error}", path=path) from error
