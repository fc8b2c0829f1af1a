"""What a sandbox changed, told in the order of paths: a directory before what is in it, names in byte order.

Directories that overlayfs copied up only because of what is in them are no changes. Of a tree that was removed its top
alone is told, and of what an opaque directory hides the same.
"""

from __future__ import annotations

import os
import stat
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Final

import msgspec

from dsec.store.rules import OVERLAY_PREFIX
from dsec.store.sources import DirectorySource, Entry, SourceItem
from dsec.store.tree import MAX_PATH_BYTES, Node, invalid, is_opaque, printable, type_name
from libdsec.protocol.errors import QuotaExceededError
from libdsec.protocol.images import Change, ChangeCount, ChangeKind

from .lower import Lower
from .order import Upper
from .overlay import is_whiteout_status
from .upper import MAX_NAMES, MOUNTED, NAMES_A_CHECK

BATCH: Final = 256
"""Changes of one array at most."""
BATCH_BYTES: Final = 32 * 1024

_LENGTH: Final = struct.Struct("<I")
_encode: Final = msgspec.msgpack.Encoder().encode


def write_changes(stack: Sequence[str], upper: Upper, id_base: int, file: IO[bytes]) -> ChangeCount:
    """Read the upper over the layers whose metadata `stack` names, and write what changed for `read_batches`.

    :raises DSecError: what `upper.check` raises; the upper has more names, or longer paths, than may be.
    """
    counts: dict[ChangeKind, int] = {"added": 0, "changed": 0, "removed": 0}
    batch: list[bytes] = []
    size = 0
    with Lower(stack) as lower:
        for change in _Changes(lower, id_base, upper).run(upper.path):
            counts[change.kind] += 1
            encoded = _encode(change)
            if len(batch) == BATCH or size + len(encoded) > BATCH_BYTES:
                _write(file, batch)
                batch, size = [], 0
            batch.append(encoded)
            size += len(encoded)
    upper.check()
    upper.done()
    if batch:
        _write(file, batch)
    file.flush()
    return ChangeCount(counts["added"], counts["changed"], counts["removed"])


def read_batches(file: IO[bytes]) -> Iterator[bytes]:
    """The arrays that `write_changes` wrote, as they go to a client."""
    file.seek(0)
    while head := file.read(_LENGTH.size):
        yield file.read(_LENGTH.unpack(head)[0])


def _write(file: IO[bytes], batch: list[bytes]) -> None:
    array = _encode([msgspec.Raw(one) for one in batch])
    file.write(_LENGTH.pack(len(array)))
    file.write(array)


@dataclass(slots=True)
class _Found:
    """A name of the upper."""

    path: bytes
    status: os.stat_result
    node: Node | None
    """None of another name of a file that was found before."""


class _Directory:
    """One that the walk is in. `hidden`: names of lower layers that it hides, being opaque, still to come."""

    __slots__ = ("hidden", "opaque", "path")

    def __init__(self, path: bytes, opaque: bool, hidden: Sequence[bytes]) -> None:
        self.path = path
        self.opaque = opaque
        self.hidden = deque(hidden)


class _Changes:
    def __init__(self, lower: Lower, id_base: int, upper: Upper) -> None:
        self._lower = lower
        self._id_base = id_base
        self._upper = upper
        self._names = 0
        self._status: os.stat_result | None = None
        self._within: list[_Directory] = []

    def run(self, path: str) -> Iterator[Change]:
        source = DirectorySource(path, leave_out=self._looked_at).entries()
        for found in _in_path_order(self._found(item) for item in source):
            yield from self._come_to(found.path)
            yield from self._change(found)
        while self._within:
            yield from self._rest(self._within.pop())

    def _looked_at(self, path: bytes, status: os.stat_result) -> bool:
        if self._names % NAMES_A_CHECK == 0:
            self._upper.check()
        self._names += 1
        if self._names > MAX_NAMES:
            raise QuotaExceededError(f"cannot list more than {MAX_NAMES} names of an upper", limit=MAX_NAMES)
        if len(path) > MAX_PATH_BYTES:
            raise invalid(path[:200], f"path of {len(path)} bytes, the most is {MAX_PATH_BYTES}")
        self._status = status
        return path in MOUNTED

    def _found(self, item: SourceItem) -> _Found:
        node = item.node if isinstance(item, Entry) else None
        status = self._status if item.path else os.stat(self._upper.path)
        assert status is not None  # it was asked for just now
        return _Found(item.path, status, node)

    def _change(self, found: _Found) -> Iterator[Change]:
        mode = found.status.st_mode
        below = self._lower.find(found.path)
        if is_whiteout_status(found.status):
            if below is not None:
                yield _change(found.path, "removed", below.mode)
            return
        if stat.S_ISDIR(mode):
            assert found.node is not None
            opaque = self._is_opaque(found.path, found.node)
            was_directory = below is not None and stat.S_ISDIR(below.mode)
            hidden = self._lower.names(found.path) if opaque and was_directory else []
            self._within.append(_Directory(found.path, opaque, hidden))
            if below is not None and was_directory and self._same(found.node, below):
                return
        size = found.status.st_size if stat.S_ISREG(mode) else 0
        yield _change(found.path, "added" if below is None else "changed", mode, size)

    def _is_opaque(self, path: bytes, node: Node) -> bool:
        """Itself, or below one that is: nothing of lower layers shows in it then either."""
        if not path:
            return False
        return is_opaque(node) or self._within[-1].opaque

    def _come_to(self, path: bytes) -> Iterator[Change]:
        """Leave the directories that do not have `path`; tell what is hidden before it in the one that has."""
        parent, _, name = path.rpartition(b"/")
        while self._within and self._within[-1].path != parent:
            yield from self._rest(self._within.pop())
        if not self._within:
            return
        hidden = self._within[-1].hidden
        while hidden and hidden[0] < name:
            yield from self._removed(parent, hidden.popleft())
        if hidden and hidden[0] == name:
            hidden.popleft()

    def _rest(self, directory: _Directory) -> Iterator[Change]:
        for name in directory.hidden:
            yield from self._removed(directory.path, name)

    def _removed(self, parent: bytes, name: bytes) -> Iterator[Change]:
        path = parent + b"/" + name if parent else name
        below = self._lower.find(path)
        if below is not None:
            yield _change(path, "removed", below.mode)

    def _same(self, node: Node, below: Node) -> bool:
        mine = {name: value for name, value in node.xattrs if not name.startswith(OVERLAY_PREFIX)}
        theirs = {name: value for name, value in below.xattrs if not name.startswith(OVERLAY_PREFIX)}
        ids = (node.uid - self._id_base, node.gid - self._id_base)
        return (below.mode, below.uid, below.gid) == (node.mode, *ids) and mine == theirs


def _change(path: bytes, kind: ChangeKind, mode: int, size: int = 0) -> Change:
    return Change(printable(path), kind, type_name(mode), size)


def _in_path_order(items: Iterator[_Found]) -> Iterator[_Found]:
    """`DirectorySource` tells a directory's files before its directories; here each takes its place among the others.
    What waits are the files of the directories on the current path."""
    waiting: list[tuple[bytes, deque[_Found]]] = []
    for item in items:
        parent = item.path.rpartition(b"/")[0]
        if not item.path:
            yield item
            waiting.append((b"", deque()))
            continue
        if not stat.S_ISDIR(item.status.st_mode):
            waiting[-1][1].append(item)
            continue
        while waiting[-1][0] != parent:
            yield from waiting.pop()[1]
        files = waiting[-1][1]
        while files and files[0].path < item.path:
            yield files.popleft()
        yield item
        waiting.append((item.path, deque()))
    while waiting:
        yield from waiting.pop()[1]
