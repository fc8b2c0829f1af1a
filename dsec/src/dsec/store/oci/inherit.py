"""Directories that a layer has names in but does not describe.

Tools may leave a directory out of a layer's tar when nothing of it changed but what is in it. Unpacked over the lower
layers it stays as it was; in an overlay the upper layer's directory is the one that counts. So it is made like the one
below, in the layer's metadata image, which is written anew; the data file stays.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
from collections.abc import Sequence
from typing import Final

from dsec.store.build import LayerBuild
from dsec.store.digest import layer_digest
from dsec.store.durable import write_durably
from dsec.store.erofs.format import BLOCK_SIZE
from dsec.store.erofs.metadata import build_metadata
from dsec.store.erofs.reader import Image, open_image
from dsec.store.rules import OVERLAY_PREFIX
from dsec.store.tree import Node, Tree, invalid, is_opaque, is_whiteout

SUFFIX: Final = ".inherited"
MAX_LINKS: Final = 40

_Place = tuple[Image, int]
_At = list[_Place] | Node | None
"""What a stack has at a path: the directories that an overlay shows as one, the highest first; something else; or
nothing."""


def inherit(build: LayerBuild, below: Sequence[str], *, complete: bool) -> LayerBuild:
    """The layer with its implied directories as they are in the layers below, whose metadata images are given, lowest
    first. The same layer where that changes nothing.

    `complete`: there will never be layers below those. Then a directory that is implied by names to be removed alone,
    and that is not there below, is left out, since it would be seen.

    :raises InvalidArgumentError: such a directory is no directory below, and no link to one.
    """
    stack = _Stack(below)
    if not build.implied or not (complete or any(map(stack.shows, build.implied))):
        return build
    tree = Tree()
    tree.root, _ = open_image(build.metadata_path).tree()  # names are not counted
    implied = [path for path in build.implied if stack.shows(path) and not _hides(tree.root, path)]
    gone = set() if not complete else _drop(tree.root, stack, build.implied)
    implied = [path for path in implied if path not in gone]
    if not implied and not gone:
        return build
    _settle(tree.root, stack, implied)
    _count_names(tree.root)
    image, inodes = build_metadata(tree, build.data_size // BLOCK_SIZE, b"".join(build.chunk_digests))
    write_durably(build.metadata_path + SUFFIX, image)
    os.rename(build.metadata_path + SUFFIX, build.metadata_path)
    digest = hashlib.sha256(image).digest()
    return dataclasses.replace(
        build,
        metadata_size=len(image),
        metadata_digest=digest,
        layer_digest=layer_digest(digest, build.chunk_digests),
        inodes=inodes,
    )


def _hides(root: Node, path: bytes) -> bool:
    """Whether the layer itself hides what lower layers have at `path`: by a directory that `path` lies in."""
    node = root
    for name in path.split(b"/")[:-1]:
        assert node.children is not None
        node = node.children[name]
        if is_opaque(node):
            return True
    return False


def _drop(root: Node, stack: _Stack, implied: Sequence[bytes]) -> set[bytes]:
    """Take out directories that only remove what is not there; which ones."""
    dropped: set[bytes] = set()
    for path in reversed(implied):
        node = _find(root, path)
        assert node is not None
        is_there = stack.resolve(path) is not None and not _hides(root, path)
        if not is_there and all(map(is_whiteout, (node.children or {}).values())):
            _take_out(root, path)
            dropped.add(path)
    return dropped


def _settle(root: Node, stack: _Stack, implied: list[bytes]) -> None:
    """Describe these directories, parents first. What lies in one that is a link below goes where the link leads, as it
    does when it is unpacked there."""
    while implied:
        path = implied.pop(0)
        like = stack.node(path)
        if like is None:
            continue
        node = _find(root, path)
        assert node is not None
        if like.children is not None:
            _describe(node, like)
        else:
            to = stack.resolve(path)
            if to is None:
                raise invalid(path, "names lie in it, but in the layers below it is no directory and leads to none")
            _take_out(root, path)
            made = _put_in(root, to, node)
            implied = [to + rest.removeprefix(path) if rest.startswith(path + b"/") else rest for rest in implied]
            implied = sorted({*implied, *made})


def _take_out(root: Node, path: bytes) -> None:
    parent, _, name = path.rpartition(b"/")
    directory = _find(root, parent)
    assert directory is not None
    assert directory.children is not None
    del directory.children[name]


def _put_in(root: Node, path: bytes, moved: Node) -> list[bytes]:
    """Put what a directory has into the one at `path`; directories that had to be made for that."""
    made: list[bytes] = []
    node = root
    at = b""
    for name in path.split(b"/") if path else ():
        at = at + b"/" + name if at else name
        assert node.children is not None
        child = node.children.get(name)
        if child is None:
            child = node.children[name] = Node(stat.S_IFDIR | 0o755)
            made.append(at)
        if child.children is None:
            raise invalid(at, "names of the layer lie in it through a link below, and it is no directory")
        node = child
    assert node.children is not None
    assert moved.children is not None
    for name, child in moved.children.items():
        if name in node.children:
            raise invalid(path + b"/" + name, "the layer has it twice, once through a link of the layers below")
        node.children[name] = child
    marks = {pair for pair in moved.xattrs if pair[0].startswith(OVERLAY_PREFIX)}
    node.xattrs = tuple(sorted({*node.xattrs, *marks}))
    return made


class _Stack:
    def __init__(self, below: Sequence[str]) -> None:
        images = [open_image(path) for path in reversed(below)]
        self._at: dict[bytes, _At] = {b"": [(image, image.root_nid) for image in images]}
        self._listed: dict[tuple[int, int], dict[bytes, int]] = {}

    def shows(self, path: bytes) -> bool:
        return self._look(path) is not None

    def node(self, path: bytes) -> Node | None:
        """What the stack shows at `path`, None where it shows nothing."""
        found = self._look(path)
        return found[0][0].node(found[0][1]) if isinstance(found, list) else found

    def resolve(self, path: bytes) -> bytes | None:
        """The directory that a path leads to by links, which cannot lead out of the root. None: it leads to none."""
        names = path.split(b"/")[::-1]
        at: list[bytes] = []
        links = 0
        while names:
            name = names.pop()
            if name in (b"", b"."):
                continue
            if name == b"..":
                del at[-1:]
                continue
            found = self.node(b"/".join([*at, name]))
            if found is not None and stat.S_ISLNK(found.mode):
                links += 1
                if links > MAX_LINKS:
                    return None
                names += found.target.split(b"/")[::-1]
                if found.target.startswith(b"/"):
                    at = []
            elif found is None or found.children is None:
                return None
            else:
                at.append(name)
        return b"/".join(at)

    def _look(self, path: bytes) -> _At:
        unknown: list[bytes] = []
        while path not in self._at:
            parent, _, name = path.rpartition(b"/")
            unknown.append(name)
            path = parent
        found = self._at[path]
        while unknown:
            name = unknown.pop()
            path = path + b"/" + name if path else name
            found = self._at[path] = self._merged(found, name) if isinstance(found, list) else None
        return found

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


def _find(root: Node, path: bytes) -> Node | None:
    node: Node | None = root
    for name in path.split(b"/") if path else ():
        node = None if node is None or node.children is None else node.children.get(name)
    return node


def _count_names(root: Node) -> None:
    pending = [root]
    while pending:
        for node in (pending.pop().children or {}).values():
            node.nlink += 1
            if node.children is not None:
                pending.append(node)


def _describe(node: Node, like: Node) -> None:
    node.mode, node.uid, node.gid, node.mtime_ns = like.mode, like.uid, like.gid, like.mtime_ns
    own = [pair for pair in node.xattrs if pair[0].startswith(OVERLAY_PREFIX)]
    node.xattrs = (*(pair for pair in like.xattrs if not pair[0].startswith(OVERLAY_PREFIX)), *own)
