"""The tree: bounds on names and values, replacement, whiteouts."""

from __future__ import annotations

import os
import stat

import pytest

from dsec.store import tree as tree_module
from dsec.store.tree import OPAQUE_XATTR, Node, Tree, type_name
from libdsec.protocol.errors import InvalidArgumentError

REG = stat.S_IFREG | 0o644
DIR = stat.S_IFDIR | 0o755
OPAQUE = (OPAQUE_XATTR, b"y")


def link(target: bytes) -> Node:
    return Node(stat.S_IFLNK | 0o777, target=target)


@pytest.mark.parametrize(
    ("path", "node", "why"),
    [
        (b"n" * 256, Node(REG), "name of 256 bytes"),
        (b"/".join([b"n" * 100] * 41), Node(REG), "path of 4140 bytes"),
        (b"..", Node(REG), "not a name"),
        (b"a/..", Node(REG), "not a name"),
        (b"../a", Node(REG), "not a name"),
        (b"a/./b", Node(REG), "not a name"),
        (b"/a", Node(REG), "not a name"),
        (b"a//b", Node(REG), "not a name"),
        (b"a/", Node(REG), "not a name"),
        (b"a\0b", Node(REG), "not a name"),
        (b"", Node(REG), "root must be a directory"),
        (b"l", link(b""), "link target of 0 bytes"),
        (b"l", link(b"t" * 4096), "link target of 4096 bytes"),
        (b"l", link(b"a\0b"), "NUL"),
        (b"d", Node(stat.S_IFCHR, rdev=os.makedev(4096, 0)), "device number 4096:0"),
        (b"d", Node(stat.S_IFBLK, rdev=os.makedev(0, 1 << 20)), "device number"),
        (b"u", Node(0o644), "unknown file type"),
        (b"t", Node(REG, mtime_ns=1 << 94), "out of range"),
        (b"x", Node(REG, xattrs=((b"user." + b"n" * 251, b""),)), "attribute name of 256"),
        (b"x", Node(REG, xattrs=((b"user.n", b"v" * 65_536),)), "65536 bytes"),
        (b"x", Node(REG, xattrs=tuple((b"user.%d" % n, b"v" * 60_000) for n in range(4))), "together"),
        (b"x", Node(REG, xattrs=((b"user.n", b"1"), (b"user.n", b"2"))), "twice"),
    ],
)
def test_what_cannot_be_is_refused_by_name(path: bytes, node: Node, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why) as caught:
        Tree().insert(path, node)
    assert caught.value.details["path"].startswith("/")


def test_nothing_lies_below_a_link_or_a_file() -> None:
    tree = Tree()
    tree.insert(b"l", link(b"/etc"))
    tree.insert(b"f", Node(REG))
    with pytest.raises(InvalidArgumentError, match=r"/l/passwd: lies in or below /l, which is a symbolic link"):
        tree.insert(b"l/passwd", Node(REG))
    with pytest.raises(InvalidArgumentError, match="not a directory"):
        tree.insert(b"f/a/b/c", Node(REG))
    with pytest.raises(InvalidArgumentError, match="symbolic link"):
        tree.link(b"l/x", b"f")


def test_missing_parents_come_into_being_and_may_be_described_later() -> None:
    tree = Tree()
    tree.insert(b"a/b/c", Node(REG))
    assert tree.get(b"a/b").mode == DIR  # type: ignore[union-attr]
    tree.insert(b"a", Node(DIR & ~0o055, uid=5))
    assert tree.get(b"a").uid == 5  # type: ignore[union-attr]
    assert tree.get(b"a/b/c") is not None
    assert tree.entries == 3
    assert tree.get(b"a/b").nlink == 1  # type: ignore[union-attr]


def test_the_last_of_two_wins_and_links_are_counted() -> None:
    tree = Tree()
    first, second = Node(REG), Node(REG)
    tree.insert(b"a", first)
    tree.link(b"b", b"a")
    tree.link(b"b", b"a")
    assert first.nlink == 2
    tree.insert(b"a", second)
    assert (first.nlink, second.nlink) == (1, 1)
    tree.link(b"b", b"a")
    assert (first.nlink, second.nlink, tree.entries) == (0, 2, 2)
    tree.insert(b"e", Node(DIR))
    tree.insert(b"e", link(b"a"))
    with pytest.raises(InvalidArgumentError, match="below"):
        tree.insert(b"e/x", Node(REG))
    tree.insert(b"d/x", Node(REG))
    with pytest.raises(InvalidArgumentError, match="has entries"):
        tree.insert(b"d", Node(REG))


def test_a_hard_link_needs_a_file() -> None:
    tree = Tree()
    tree.insert(b"d", Node(DIR))
    with pytest.raises(InvalidArgumentError, match=r"/x: hard link to /missing, which is not in the tree"):
        tree.link(b"x", b"missing")
    with pytest.raises(InvalidArgumentError, match="which is a directory"):
        tree.link(b"x", b"d")


def test_entries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "MAX_ENTRIES", 3)
    tree = Tree()
    tree.insert(b"a/b/c", Node(REG))
    with pytest.raises(InvalidArgumentError, match="more than 3 entries"):
        tree.insert(b"d", Node(REG))


@pytest.mark.parametrize("hidden_first", [True, False])
def test_a_hidden_name(hidden_first: bool) -> None:
    """What the layer itself has stays; a directory of it shows nothing of lower layers."""
    tree = Tree()

    def hide() -> None:
        for path in (b"gone", b"file", b"dir", b"implied"):
            tree.hide(path)

    if hidden_first:
        hide()
    tree.insert(b"file", Node(REG))
    tree.insert(b"dir", Node(DIR, xattrs=((b"user.a", b"1"),)))
    tree.insert(b"implied/x", Node(REG))
    if not hidden_first:
        hide()
    gone = tree.get(b"gone")
    assert gone is not None
    assert (gone.mode, gone.rdev) == (stat.S_IFCHR, 0)
    assert tree.get(b"file").mode == REG  # type: ignore[union-attr]
    assert tree.get(b"dir").xattrs == ((b"user.a", b"1"), OPAQUE)  # type: ignore[union-attr]
    assert tree.get(b"implied").xattrs == (OPAQUE,)  # type: ignore[union-attr]
    with pytest.raises(InvalidArgumentError, match="root"):
        tree.hide(b"")


def test_a_link_in_a_hidden_place_is_no_way_through() -> None:
    tree = Tree()
    tree.hide(b"l")
    tree.insert(b"l", link(b"/etc"))
    with pytest.raises(InvalidArgumentError, match="symbolic link"):
        tree.insert(b"l/passwd", Node(REG))


def test_an_opaque_directory_stays_so_when_its_entry_follows() -> None:
    tree = Tree()
    tree.hide_below(b"a/b")
    tree.insert(b"a/b", Node(DIR, uid=3))
    assert tree.get(b"a/b").xattrs == (OPAQUE,)  # type: ignore[union-attr]
    tree.hide_below(b"")
    tree.insert(b"", Node(DIR))
    assert tree.root.xattrs == (OPAQUE,)
    tree.insert(b"f", Node(REG))
    with pytest.raises(InvalidArgumentError, match="not a directory"):
        tree.hide_below(b"f")


def test_a_type_has_a_name_and_nonsense_has_none() -> None:
    assert [type_name(mode) for mode in (REG, DIR, stat.S_IFLNK, stat.S_IFBLK, 0o644)] == [
        *("file", "directory", "symlink", "device", "")
    ]
