"""A stack of layers as one tree, by the rules of an overlay.

Layers are laid over each other, the lowest first: directories become one unless the upper is opaque, anything else
hides what lies below it, a whiteout hides and is not seen itself. Hard links stay links where all names come from one
layer; a name that an upper layer replaces leaves the group. A mark on the root that it is opaque means nothing, as
overlayfs takes no notice of it either.

Only metadata is held, 0.9 KB a name; contents are read at the end, from the layers' data files (`layer_data`), where
their blocks are numbered through.

With `hiding` the tree is a part of a larger stack: it keeps the whiteouts and opaque marks by which it hides what lies
below *it*. A directory that stands where a lower layer of the part had something else is opaque then, for that hid
what lies below too.
"""

from __future__ import annotations

import hashlib
import mmap
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

from libdsec.protocol.errors import IntegrityError, QuotaExceededError

from .erofs.format import BLOCK_SIZE
from .erofs.reader import Image, map_image
from .layer_data import PlacedContent, StackData, Whole, require_whole
from .records import LayerRecord
from .rules import OVERLAY_PREFIX
from .sources.base import Entry, HardLink, Opaque, SourceItem, Whiteout
from .tree import MAX_ENTRIES, Node, Xattrs, is_opaque, is_whiteout, make_opaque, mark_whiteouts

_ANYTHING: Final = Node(stat.S_IFDIR)
"""Stands for a directory below of which nothing is known."""


def nothing() -> None:
    """The tick of somebody who cannot be interrupted."""


class Flattened:
    """The tree of a stack, also as a source (`entries`). `root` is its root; nodes' runs are in blocks of `data`."""

    def __init__(
        self,
        layers: Sequence[LayerRecord],
        *,
        hiding: bool = False,
        below: Sequence[LayerRecord] | None = (),
        tick: Callable[[], None] = nothing,
        whole: Whole = require_whole,
    ) -> None:
        """With `hiding`, what hides nothing of the layers `below` is left out; None: it is not known what lies below.
        `tick` is called every few thousand names while metadata is read, `whole` before a layer's data is; what they
        raise comes out.

        :raises IntegrityError: a metadata image is not what its digest says, or is damaged.
        :raises QuotaExceededError: all together have too many names.
        """
        self.data = StackData(layers, whole)
        self.root = _stacked(layers, self.data.starts, tick)
        if hiding:
            beneath = _ANYTHING if below is None else Flattened(below, tick=tick).root if below else None
            _keep_hiding(self.root, beneath)
        else:
            _show(self.root)
        _count_names(self.root)

    def close(self) -> None:
        self.data.close()

    def entries(self) -> Generator[SourceItem, None, None]:
        """See `Source.entries`; may be called again once it is closed or has ended.

        First everything that has no data, directories before what is in them, names in byte order; then the files with
        data in the order of their blocks, so that data files are read from front to end; then files that are one hole.
        A layer built from a layer is the same one again, where its own build never closed a chunk with room to make way
        (`erofs.data`): beyond that small files may come to lie elsewhere.
        """
        late: list[tuple[bytes, Node]] = []
        first: dict[int, bytes] = {}
        others: dict[int, list[bytes]] = {}
        try:
            for path, node in walk(self.root):
                if is_whiteout(node):
                    yield Whiteout(path)
                    continue
                has_content = stat.S_ISREG(node.mode) and node.size > 0
                if node.nlink > 1 and node.children is None:
                    target = first.setdefault(id(node), path)
                    if target is not path:
                        if has_content:
                            others.setdefault(id(node), []).append(path)
                        else:
                            yield HardLink(path, target)
                        continue
                if has_content:
                    late.append((path, node))
                    continue
                yield Entry(path, _own(node))
                if path and is_opaque(node):
                    yield Opaque(path)
            late.sort(key=lambda found: found[1].runs[0][1] if found[1].runs else self.data.blocks)
            for path, node in late:
                yield Entry(path, _own(node), PlacedContent(self.data, node))
                for other in others.get(id(node), ()):
                    yield HardLink(other, path)
        finally:
            self.data.close()


def has_opaque_root(layer: LayerRecord) -> bool:
    """Whether a layer says that it hides all below: nothing for an overlay, which whoever makes a stack has to obey.

    :raises IntegrityError: its metadata image is not what its digest says, or is damaged.
    """
    image = Image(_metadata(layer))
    return is_opaque(image.node(image.root_nid))


def walk(root: Node) -> Iterator[tuple[bytes, Node]]:
    """Every name, directories before what is in them, names in byte order; the root is `b""`."""
    pending = [(b"", root)]
    while pending:
        path, node = pending.pop()
        yield path, node
        if node.children:
            prefix = path + b"/" if path else b""
            pending.extend((prefix + name, node.children[name]) for name in sorted(node.children, reverse=True))


def _stacked(layers: Sequence[LayerRecord], starts: Sequence[int], tick: Callable[[], None]) -> Node:
    root = Node(stat.S_IFDIR | 0o755)
    names = 0
    for number, (layer, start) in enumerate(zip(layers, starts, strict=True)):
        upper, more = _read(layer, start, tick)
        if number:
            _lay_over(root, upper)
        root = upper
        names += more
        if names > MAX_ENTRIES:
            # what came and went does not count
            names = sum(len(directory.children or ()) for directory in _directories(root))
        if names > MAX_ENTRIES:
            raise QuotaExceededError(
                f"cannot make one tree of {len(layers)} layers: up to {layer.digest} they have {names} names, the most "
                f"is {MAX_ENTRIES}",
                limit=MAX_ENTRIES,
            )
    return root


def _read(layer: LayerRecord, start: int, tick: Callable[[], None]) -> tuple[Node, int]:
    """One layer's tree, and how many names are in it."""
    image = Image(_metadata(layer), data_at=start)
    if image.data_blocks * BLOCK_SIZE != layer.data_bytes:
        raise _broken(layer, f"its metadata is of {image.data_blocks} blocks of data, not of {layer.data_bytes} bytes")
    root, names = image.tree(tick)
    if root.children is None:
        raise _broken(layer, "its root is no directory")
    return root, names


def _metadata(layer: LayerRecord) -> mmap.mmap:
    try:
        image = map_image(layer.metadata)
    except (OSError, ValueError) as error:
        raise _broken(layer, f"cannot read {layer.metadata}: {error}") from error
    found = hashlib.sha256(image).hexdigest()
    if found != layer.metadata_digest:
        raise _broken(layer, f"{layer.metadata} has digest {found}, not {layer.metadata_digest}")
    return image


def _lay_over(lower: Node, upper: Node) -> None:
    """Make of `upper`, the root of what lies over `lower`, what both show together. Whiteouts stay, for what may lie
    below both; the lower tree is used up."""
    pending = [(lower, upper)]
    while pending:
        below, above = pending.pop()
        if is_opaque(above) and above is not upper:
            continue
        merged, over = below.children, above.children
        assert merged is not None
        assert over is not None
        if is_opaque(below):
            make_opaque(above)
        for name, node in over.items():
            old = merged.get(name)
            if old is not None and node.children is not None:
                if old.children is None:
                    make_opaque(node)
                else:
                    pending.append((old, node))
            merged[name] = node
        above.children = merged


def _show(root: Node) -> None:
    """Take out what hides, and what speaks to overlayfs alone."""
    for directory in _directories(root):
        children = directory.children
        assert children is not None
        for name in [name for name, node in children.items() if is_whiteout(node)]:
            del children[name]
        for node in (directory, *children.values()):
            node.xattrs = _plain(node)


def _keep_hiding(root: Node, beneath: Node | None) -> None:
    """Take out what hides nothing. `beneath` is the directory that lies below the root: None for nothing."""
    pending: list[tuple[Node, Node | None]] = [(root, beneath)]
    while pending:
        directory, below = pending.pop()
        opaque = is_opaque(directory) and directory is not root
        hides = opaque and below is not None
        children = directory.children
        assert children is not None
        lower = None if opaque or below is None else below.children
        kept = False
        for name, node in list(children.items()):
            old = _ANYTHING if below is _ANYTHING and not opaque else (lower or {}).get(name)
            if is_whiteout(node):
                if old is None:
                    del children[name]
                kept = kept or old is not None
            elif node.children is not None:
                pending.append((node, old if old is None or old.children is not None else None))
            else:
                node.xattrs = _plain(node)
        directory.xattrs = _plain(directory)
        if hides:
            make_opaque(directory)
        if kept:
            mark_whiteouts(directory)


def _count_names(root: Node) -> None:
    for directory in _directories(root):
        for node in (directory.children or {}).values():
            node.nlink += 1


def _directories(root: Node) -> Iterator[Node]:
    pending = [root]
    while pending:
        directory = pending.pop()
        yield directory
        pending.extend(node for node in (directory.children or {}).values() if node.children is not None)


def _plain(node: Node) -> Xattrs:
    """Its attributes without those that speak to overlayfs."""
    if not node.xattrs:
        return ()
    return tuple(pair for pair in node.xattrs if not pair[0].startswith(OVERLAY_PREFIX))


def _own(node: Node) -> Node:
    """A copy for whoever reads the entries, which may change it."""
    return Node(
        node.mode,
        uid=node.uid,
        gid=node.gid,
        mtime_ns=node.mtime_ns,
        xattrs=_plain(node),
        rdev=node.rdev,
        target=node.target,
    )


def _broken(layer: LayerRecord, why: str) -> IntegrityError:
    return IntegrityError(
        f"cannot read layer {layer.digest}: {why}; remove the images that have it and build them again",
        digest=layer.digest,
    )
