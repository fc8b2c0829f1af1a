"""What turns one image's tree into another's.

Names are compared as a sandbox sees them, through all layers. A time alone is no change. Contents are the same where
they are the same blocks of the same layer, and differ where sizes do; else chunks are compared by digest where a file
has them to itself, and by their bytes where not.
"""

from __future__ import annotations

import stat
from bisect import bisect_right
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final

from libdsec.protocol.images import Change, ChangeKind

from .digest import DIGEST_SIZE, STORE_CHUNK_SIZE
from .erofs.format import BLOCK_SIZE
from .flatten import Flattened
from .layer_data import StackData, Whole, require_whole
from .local import LocalStore
from .records import LayerRecord
from .tree import Node, printable, type_name

_ZEROS: Final = bytes(STORE_CHUNK_SIZE)
_TICK_EVERY: Final = 1024


def diff_images(
    store: LocalStore, a: str, b: str, tick: Callable[[], None], whole: Whole = require_whole
) -> Generator[Change, None, None]:
    """Changes in the order of paths, a directory before what is in it; blocking. What was added is told name by name,
    of a directory that was removed it alone. `tick` is called now and then and may raise, `whole` before
    contents of a layer are compared, which few need to be.

    :raises ImageNotFoundError: no such image.
    :raises DSecError: what `whole` raises; `ConflictError` where a layer's data is not all on this node.
    :raises IntegrityError: a layer is damaged.
    """
    with store.keeping(a) as old, store.keeping(b) as new:
        if old.layers == new.layers:
            return
        with (
            closing(Flattened(old.layers, tick=tick, whole=whole)) as before,
            closing(Flattened(new.layers, tick=tick, whole=whole)) as after,
        ):
            contents = _Contents((old.layers, before.data), (new.layers, after.data), tick)
            yield from _changes(before.root, after.root, contents, tick)


def _changes(before: Node, after: Node, contents: _Contents, tick: Callable[[], None]) -> Generator[Change, None, None]:
    pending: list[tuple[bytes, Node | None, Node | None]] = [(b"", before, after)]
    looked = 0
    while pending:
        path, old, new = pending.pop()
        looked += 1
        if looked % _TICK_EVERY == 0:
            tick()
        if old is None or new is None or not contents.same(old, new):
            yield _change(path, old, new)
        if new is None or new.children is None:
            continue
        under = old.children if old is not None and old.children is not None else {}
        over = new.children
        prefix = path + b"/" if path else b""
        for name in sorted(under.keys() | over.keys(), reverse=True):
            pending.append((prefix + name, under.get(name), over.get(name)))


def _change(path: bytes, old: Node | None, new: Node | None) -> Change:
    kind: ChangeKind = "changed"
    if new is None:
        kind = "removed"
    elif old is None:
        kind = "added"
    node = new or old
    assert node is not None
    size = new.size if new is not None and stat.S_ISREG(new.mode) else 0
    return Change(printable(path), kind, type_name(node.mode), size)


class _Contents:
    """Compares nodes of two stacks."""

    def __init__(
        self,
        a: tuple[tuple[LayerRecord, ...], StackData],
        b: tuple[tuple[LayerRecord, ...], StackData],
        tick: Callable[[], None],
    ) -> None:
        self._tick = tick
        self._layers = (a[0], b[0])
        self._data = (a[1], b[1])

    def same(self, old: Node, new: Node) -> bool:
        if (old.mode, old.uid, old.gid, old.rdev, old.target) != (new.mode, new.uid, new.gid, new.rdev, new.target):
            return False
        if sorted(old.xattrs) != sorted(new.xattrs):
            return False
        if not stat.S_ISREG(old.mode):
            return True
        return old.size == new.size and (self._same_place(old, new) or self._same_bytes(old, new))

    def _same_place(self, old: Node, new: Node) -> bool:
        return self._places(0, old) == self._places(1, new)

    def _places(self, side: int, node: Node) -> list[tuple[int, str, int, int]]:
        places = []
        for first, block, count in node.runs:
            index = self._data[side].layer_at(block)
            places.append((first, self._layers[side][index].digest, block - self._data[side].starts[index], count))
        return places

    def _same_bytes(self, old: Node, new: Node) -> bool:
        files = (_File(self._data[0], self._layers[0], old), _File(self._data[1], self._layers[1], new))
        for start in range(0, old.size, STORE_CHUNK_SIZE):
            length = min(STORE_CHUNK_SIZE, old.size - start)
            self._tick()
            digests = [file.digest(start, length) for file in files]
            if None not in digests:
                if digests[0] != digests[1]:
                    return False
            elif files[0].read(start, length) != files[1].read(start, length):
                return False
        return True


class _File:
    """A file's content at any place of it."""

    def __init__(self, data: StackData, layers: tuple[LayerRecord, ...], node: Node) -> None:
        self._data = data
        self._layers = layers
        self._runs = node.runs
        self._firsts = [first * BLOCK_SIZE for first, _, _ in node.runs]

    def digest(self, start: int, length: int) -> bytes | None:
        """The digest of a part that has a whole chunk of its layer to itself, None where it has not."""
        if length != STORE_CHUNK_SIZE:
            return None
        number = bisect_right(self._firsts, start) - 1
        if number < 0:
            return None
        first, block, count = self._runs[number]
        inside = start - first * BLOCK_SIZE
        index = self._data.layer_at(block)
        place = (block - self._data.starts[index]) * BLOCK_SIZE + inside
        record = self._data.record(index)
        if record.chunk_size != length or place % length or inside + length > count * BLOCK_SIZE:
            return None
        if place + length > self._layers[index].data_bytes:
            return None
        chunk = place // length
        return record.chunk_digests[chunk * DIGEST_SIZE : (chunk + 1) * DIGEST_SIZE]

    def read(self, start: int, length: int) -> bytes:
        """Holes are zeros."""
        found = bytearray(_ZEROS[:length])
        number = max(bisect_right(self._firsts, start) - 1, 0)
        for first, block, count in self._runs[number:]:
            low = max(first * BLOCK_SIZE, start)
            high = min((first + count) * BLOCK_SIZE, start + length)
            if first * BLOCK_SIZE >= start + length:
                break
            while low < high:
                view = memoryview(found)[low - start : high - start]
                low += self._data.read_into(view, block * BLOCK_SIZE + low - first * BLOCK_SIZE)
        return bytes(found)
