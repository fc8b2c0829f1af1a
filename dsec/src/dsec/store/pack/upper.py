"""An upper as the source of a layer, without what the rules leave out.

The walk is `DirectorySource`'s: by descriptors, never through a link, FIFOs not opened. It asks `_Walk.leaves_out` of
every name before it yields it; a directory is always entered, since something below may stay.

A directory is told late: before the first thing in it that stays, or when the walk leaves it. By then it is known
whether leaving out has emptied it. One that has become empty vanishes where a lower layer shows the same directory
anyway; one that is left out itself is told only for what must stay in it: what a later rule keeps, a whiteout (what was
removed stays removed), and the mark that it is opaque.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterator
from typing import Final

from dsec.store.rules import OVERLAY_PREFIX
from dsec.store.sources import DirectorySource, Entry, HardLink, Opaque, SourceItem, Whiteout
from dsec.store.sources.directory import MAX_EXTENTS
from dsec.store.tree import MAX_PATH_BYTES, Node, Xattrs, invalid, is_opaque
from libdsec.protocol.errors import QuotaExceededError

from .lower import Lower
from .matching import Matcher, Place
from .overlay import check_marks, is_whiteout_status, plain_capability
from .residue import Residue, Row

MAX_NAMES: Final = 1_000_000
"""In an upper: each takes a kilobyte of memory until its layer is written."""
NAMES_A_CHECK: Final = 16
"""Between two checks whether to go on; who reads the contents does so for each MiB."""
MAX_FILLED_BYTES: Final = 1 << 30
"""What may be read as zeros of a file that has more pieces than are listed."""

MOUNTED: Final = frozenset((b"dev", b"proc", b"sys"))
"""What lies there is the platform's, and so are these directories themselves."""

Check = Callable[[], None]
"""Raises where nobody wants the layer any more, or what is read can no longer be trusted."""


class UpperSource:
    """Read once. `residue` and `seen` are whole when `entries` has come to its end."""

    def __init__(
        self,
        path: str,
        id_base: int,
        *,
        lower: Lower,
        matcher: Matcher,
        check: Check,
        on_name: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """`on_name` is told of whatever stays and hides something below: of all but ordinary directories."""
        self._path = path
        self._id_base = id_base
        self._lower = lower
        self._matcher = matcher
        self._check = check
        self._on_name = on_name
        self.residue = Residue()
        self.empty = True
        """Nothing stays, and the root is what it was."""

    def remap(self, number: int) -> int:
        """An id as the sandbox sees it; what is not in its range comes out negative or too large, for `rules.Rules` to
        refuse: neither a sandbox nor what prepares one makes such a file."""
        return number - self._id_base

    def entries(self) -> Generator[SourceItem, None, None]:
        """See `Source.entries`.

        :raises QuotaExceededError: more names than may be.
        """
        walk = _Walk(self._id_base, self._lower, self._matcher, self._check, self.residue)
        for item in walk.run(self._path):
            if isinstance(item, Entry) and item.node.children is not None:
                self.empty = self.empty and not item.path and self._is_lower_root(item.node)
            else:
                self.empty = False
                self._on_name(item.path)
            yield item
        self._check()

    def _is_lower_root(self, node: Node) -> bool:
        return _same(node, self._lower.find(b""), self._id_base)


class _Directory:
    """One on the current path, from when it is entered until it is told or has vanished."""

    __slots__ = ("emptied", "node", "parent", "path", "place", "row", "told")

    def __init__(self, path: bytes, node: Node, parent: _Directory | None, place: Place, row: Row | None) -> None:
        self.path = path
        self.node = node
        self.parent = parent
        self.place = place
        self.row = row
        """Of what is left out with it."""
        self.told = False
        self.emptied = False
        """Something below was left out."""


class _Walk:
    def __init__(self, id_base: int, lower: Lower, matcher: Matcher, check: Check, residue: Residue) -> None:
        self._id_base = id_base
        self._lower = lower
        self._matcher = matcher
        self._check = check
        self._residue = residue
        self._current: list[_Directory] = []
        self._left: list[_Directory] = []
        """Those that the walk has left since it yielded something, in that order."""
        self._names = 0
        self._whiteouts: set[bytes] = set()
        """First names of whiteouts that overlayfs has linked to save inodes."""

    def run(self, path: str) -> Iterator[SourceItem]:
        for item in DirectorySource(path, leave_out=self.leaves_out).entries():
            entered = item if isinstance(item, Entry) and item.node.children is not None else None
            if entered is not None:
                self._enter(entered)
            if self._left:
                yield from self._told_left()
            if entered is not None:
                continue
            if not self._current[-1].told:
                yield from self._told(self._current[-1])
            yield self._plain(item)
        while self._current:
            self._left.append(self._current.pop())
        yield from self._told_left()

    def leaves_out(self, path: bytes, status: os.stat_result) -> bool:
        """See `directory.LeaveOut`."""
        if self._names % NAMES_A_CHECK == 0:
            self._check()
        self._names += 1
        if self._names > MAX_NAMES:
            raise QuotaExceededError(
                f"cannot pack more than {MAX_NAMES} names; this upper has more of them", limit=MAX_NAMES
            )
        directory = self._leave_to(path)
        place = directory.place.below(path.rpartition(b"/")[2])
        if stat.S_ISDIR(status.st_mode):
            return path in MOUNTED or self._too_deep(path, place, directory)
        if is_whiteout_status(status):
            if status.st_nlink > 1:
                self._whiteouts.add(path)
            return False
        rule = place.left_out
        why = rule.why or f"rule {rule.pattern}" if rule is not None else _why_never(status.st_mode)
        if why is None:
            return False
        row = directory.row if rule is not None and directory.row is not None else self._residue.begin(path, why)
        self._residue.add(row, status)
        directory.emptied = True
        return True

    def _too_deep(self, path: bytes, place: Place, parent: _Directory) -> bool:
        """A path longer than a layer can have ends the walk, or the part of it that is left out anyway."""
        if len(path) <= MAX_PATH_BYTES:
            return False
        if place.left_out is None:
            raise invalid(path[:200], f"path of {len(path)} bytes, the most is {MAX_PATH_BYTES}")
        if parent.row is not None:
            self._residue.add(parent.row, None)
        return True

    def _enter(self, entry: Entry) -> None:
        path, node = entry.path, entry.node
        if not path:
            self._current.append(_Directory(path, node, None, self._matcher.root, None))
            return
        parent = self._leave_to(path)
        place = parent.place.below(path.rpartition(b"/")[2])
        rule = place.left_out
        row = None
        if rule is not None:
            row = parent.row or self._residue.begin(path, rule.why or f"rule {rule.pattern}")
            self._residue.add(row, None)
        self._current.append(_Directory(path, node, parent, place, row))

    def _leave_to(self, path: bytes) -> _Directory:
        """The directory that has `path`; those that the walk has left for it are told at the next item."""
        parent = path.rpartition(b"/")[0]
        while self._current[-1].path != parent:
            self._left.append(self._current.pop())
        return self._current[-1]

    def _told_left(self) -> Iterator[SourceItem]:
        for directory in self._left:
            if directory.told:
                continue
            if not self._vanishes(directory):
                yield from self._told(directory)
            elif directory.parent is not None:
                directory.parent.emptied = True
        self._left.clear()

    def _vanishes(self, directory: _Directory) -> bool:
        """Of one in which nothing stays."""
        if self._hides(directory):
            return False
        return directory.row is not None or (directory.emptied and self._shown_below(directory))

    def _told(self, directory: _Directory) -> Iterator[SourceItem]:
        """It and those above it, as far as they were not."""
        chain = [directory]
        while (above := chain[-1].parent) is not None and not above.told:
            chain.append(above)
        for one in reversed(chain):
            if one.told:
                continue
            one.told = True
            if one.row is not None:
                self._residue.take_back(one.row)
            hides = self._hides(one)
            yield self._plain(Entry(one.path, one.node))
            if hides:
                yield Opaque(one.path)

    def _hides(self, directory: _Directory) -> bool:
        """Whether it is opaque and there is something to hide. Overlayfs makes every new directory so, which costs it
        nothing; in a layer it would hide what others have there, once that lies below."""
        if not directory.path or not is_opaque(directory.node):
            return False
        below = self._lower.find(directory.path)
        return below is not None and stat.S_ISDIR(below.mode)

    def _shown_below(self, directory: _Directory) -> bool:
        return bool(directory.path) and _same(directory.node, self._lower.find(directory.path), self._id_base)

    def _plain(self, item: SourceItem) -> SourceItem:
        """The item as it is in a layer."""
        if isinstance(item, HardLink):
            return Whiteout(item.path) if item.target in self._whiteouts else item
        if not isinstance(item, Entry):
            return item
        node = item.node
        if stat.S_ISCHR(node.mode):
            return Whiteout(item.path)  # other devices are left out
        if node.xattrs:
            check_marks(item.path, node)
            plain_capability(node, self._id_base)
        if item.content is not None:
            _check_extents(item.path, item.content.extents)
        return item


def _why_never(mode: int) -> str | None:
    """What has no meaning in another sandbox."""
    if stat.S_ISSOCK(mode):
        return "socket: nobody listens to it in another sandbox"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "device: it is of no use in a sandbox"
    return None


def _same(node: Node, below: Node | None, id_base: int) -> bool:
    """Whether a lower layer shows the same directory."""
    return (
        below is not None
        and (below.mode, below.uid, below.gid) == (node.mode, node.uid - id_base, node.gid - id_base)
        and _shown(below.xattrs) == _shown(node.xattrs)
    )


def _shown(xattrs: Xattrs) -> dict[bytes, bytes]:
    return {name: value for name, value in xattrs if not name.startswith(OVERLAY_PREFIX)}


def _check_extents(path: bytes, extents: object) -> None:
    if isinstance(extents, list) and len(extents) >= MAX_EXTENTS and extents[-1][1] > MAX_FILLED_BYTES:
        raise invalid(path, f"is in more than {MAX_EXTENTS} pieces, and {extents[-1][1]} bytes would have to be read")
