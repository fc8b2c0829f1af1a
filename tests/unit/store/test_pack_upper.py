"""An upper as a source: what stays, what is left out, and what becomes of the directories around it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dsec.store.build import build_layer
from dsec.store.pack import upper as upper_module
from dsec.store.pack.changes import read_batches, write_changes
from dsec.store.pack.lower import Lower
from dsec.store.pack.matching import Matcher
from dsec.store.pack.order import Upper
from dsec.store.pack.upper import NAMES_A_CHECK, UpperSource
from dsec.store.sources import BytesContent, Entry, HardLink, MemorySource, Opaque, SourceItem, Whiteout
from dsec.store.tree import Node
from libdsec.protocol.errors import InvalidArgumentError, QuotaExceededError, SandboxFailedError
from libdsec.protocol.images import Change, ChangeCount, ScrubRule

DIRECTORY, FILE = 0o040755, 0o100644


def layer(directory: Path, name: str, *items: SourceItem) -> str:
    """A layer's metadata image."""
    return build_layer(MemorySource(items), directory, name).metadata_path


def directory(path: bytes, mode: int = DIRECTORY) -> Entry:
    return Entry(path, Node(mode))


def file(path: bytes, content: bytes = b"") -> Entry:
    return Entry(path, Node(FILE), BytesContent(content))


class Packed:
    def __init__(self, top: Path, *rules: str, lower: tuple[str, ...] = (), **options: object) -> None:
        """A rule that begins with `!` keeps."""
        made = [ScrubRule(rule.removeprefix("!"), "why", rule.startswith("!")) for rule in rules]
        self.names: list[bytes] = []
        with Lower(lower) as stack:
            source = UpperSource(
                str(top),
                os.getuid(),
                lower=stack,
                matcher=Matcher(made),
                check=options.get("check", lambda: None),  # type: ignore[arg-type]
                on_name=self.names.append,
            )
            self.items: list[SourceItem] = list(source.entries())
        self.paths = [item.path for item in self.items if isinstance(item, Entry | HardLink | Whiteout)]
        self.empty = source.empty
        self.residue = source.residue
        self.rows = {row.path: (row.files, row.bytes) for row in source.residue.rows()}


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "upper").mkdir(mode=0o755)
    return tmp_path / "upper"


def write(top: Path, *paths: str) -> None:
    for path in paths:
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_bytes(b"12345")


def test_what_is_left_out_is_told_once_for_all_below_it(top: Path) -> None:
    write(top, "a/b", "tmp/x", "tmp/d/e/f", "tmp/d/g")
    packed = Packed(top, "tmp/*")
    assert packed.paths == [b"", b"a", b"a/b", b"tmp"]
    assert packed.rows == {"/tmp/x": (1, 5), "/tmp/d": (4, 10)}
    assert (packed.residue.files, packed.residue.bytes) == (5, 15)
    assert packed.names == [b"a/b"]


def test_a_directory_that_became_empty_vanishes_where_a_lower_layer_shows_the_same(top: Path, tmp_path: Path) -> None:
    write(top, "same/x", "new/x", "other/x", "deep/same/x")
    os.chmod(top / "other", 0o700)
    (top / "was-empty").mkdir()
    lower = layer(tmp_path, "l", *map(directory, (b"same", b"other", b"deep", b"deep/same", b"was-empty")))
    packed = Packed(top, "**/x", lower=(lower,))
    assert packed.paths == [b"", b"new", b"other", b"was-empty"]
    assert not packed.empty
    assert Packed(top, "**/x", "new", "other", "was-empty", lower=(lower,)).empty


def test_what_a_later_rule_keeps_stays_with_its_directories(top: Path) -> None:
    write(top, "tmp/d/keep/f", "tmp/d/other")
    os.chmod(top / "tmp/d", 0o1777)
    packed = Packed(top, "tmp/*", "!tmp/d/keep")
    assert packed.paths == [b"", b"tmp", b"tmp/d", b"tmp/d/keep", b"tmp/d/keep/f"]
    assert [item.node.mode for item in packed.items if isinstance(item, Entry) and item.path == b"tmp/d"] == [0o041777]
    assert packed.rows == {"/tmp/d": (1, 5)}


def test_another_name_of_what_is_left_out_has_the_content(top: Path) -> None:
    write(top, "a/left")
    for name in ("b", "c"):
        os.link(top / "a/left", top / name)
    packed = Packed(top, "a/left", "b")
    assert packed.paths == [b"", b"c", b"a"]
    (entry,) = [item for item in packed.items if item.path == b"c"]
    assert isinstance(entry, Entry)
    assert entry.content is not None


def test_sockets_and_the_platforms_own_directories_are_left_out(top: Path) -> None:
    os.mkfifo(top / "fifo")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(top / "socket"))
    for name in ("dev", "proc", "sys"):
        (top / name).mkdir()
    write(top, "sub/proc/x")
    packed = Packed(top)
    assert packed.paths == [b"", b"fifo", b"sub", b"sub/proc", b"sub/proc/x"]
    assert packed.rows == {"/socket": (1, 0)}


def test_names_of_any_bytes(top: Path) -> None:
    names = [b"\xff\xfe", b"a\nb", b"caf\xc3\xa9", b" ", b"*"]
    for name in names:
        with open(os.path.join(os.fsencode(top), name), "wb"):
            pass
    assert Packed(top).paths == [b"", *sorted(names)]
    assert Packed(top, "?*").rows.keys() == {"/\\xff\\xfe", "/a\nb", "/café", "/ ", "/*"}


def test_a_path_that_is_too_long_ends_it_unless_it_is_left_out(top: Path) -> None:
    at = os.open(top, os.O_RDONLY)
    for _ in range(19):
        os.mkdir(b"d" * 250, dir_fd=at)
        below = os.open(b"d" * 250, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    with pytest.raises(InvalidArgumentError, match="the most is 4095"):
        Packed(top)
    assert Packed(top, "d*").paths == [b""]


def test_there_may_not_be_too_many_names(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upper_module, "MAX_NAMES", 3)
    write(top, "a", "b", "c")
    assert Packed(top).paths == [b"", b"a", b"b", b"c"]
    write(top, "d")
    with pytest.raises(QuotaExceededError):
        Packed(top, "*")


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_it_ends_where_nothing_read_can_be_trusted(top: Path, calls: int) -> None:
    write(top, *(f"{number}" for number in range(2 * NAMES_A_CHECK)))
    left = calls

    def check() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise SandboxFailedError("ended")

    with pytest.raises(SandboxFailedError):
        Packed(top, check=check)


def test_an_upper_of_nothing_is_empty(top: Path, tmp_path: Path) -> None:
    base = layer(tmp_path, "l", directory(b""), file(b"a"))
    assert Packed(top, lower=(base,)).empty
    os.chmod(top, 0o700)
    assert not Packed(top, lower=(base,)).empty


def test_lower_layers_hide_each_other(tmp_path: Path) -> None:
    low = layer(tmp_path, "low", *map(file, (b"a/x", b"a/y", b"b/x", b"c", b"d/x")), directory(b"a"))
    high = layer(
        tmp_path, "high", Whiteout(b"a/x"), directory(b"b"), Opaque(b"b"), file(b"b/z"), Whiteout(b"c"), file(b"d")
    )
    with Lower((low, high)) as lower:
        assert lower.find(b"a/x") is None
        assert lower.find(b"a/y") is not None
        assert lower.find(b"b/x") is None
        assert (lower.names(b""), lower.names(b"a"), lower.names(b"b")) == ([b"a", b"b", b"d"], [b"y"], [b"z"])
        assert lower.find(b"c") is None
        assert lower.find(b"d/x") is None
        assert lower.names(b"d") == []
        assert lower.find(b"nowhere/x") is None
    with Lower((low,)) as lower:
        assert lower.names(b"") == [b"a", b"b", b"c", b"d"]


def told(top: Path, tmp_path: Path, *lower: str, check: Callable[[], None] = lambda: None) -> list[tuple[str, str]]:
    done: list[bool] = []
    with (tmp_path / "changes").open("w+b") as spool:
        upper = Upper(str(top), None, check, lambda: done.append(True))
        count = write_changes(lower, upper, os.getuid(), spool)
        found = [change for batch in read_batches(spool) for change in msgspec.msgpack.decode(batch, type=list[Change])]
    assert done == [True]
    kinds = [change.kind for change in found]
    assert count == ChangeCount(*(kinds.count(kind) for kind in ("added", "changed", "removed")))
    return [(change.path, change.kind) for change in found]


def test_changes_come_in_the_order_of_paths(top: Path, tmp_path: Path) -> None:
    write(top, "a/x", "a/b/y", "a/z", "a-b", "b")
    lower = layer(tmp_path, "l", directory(b""), directory(b"a"), file(b"a/z"))
    assert told(top, tmp_path, lower) == [
        ("/a/b", "added"),
        ("/a/b/y", "added"),
        ("/a/x", "added"),
        ("/a/z", "changed"),
        ("/a-b", "added"),
        ("/b", "added"),
    ]


def test_many_changes_come_in_many_arrays(top: Path, tmp_path: Path) -> None:
    for number in range(1000):
        (top / f"{number:04}").touch()
    lower = layer(tmp_path, "l", directory(b""))
    assert [path for path, _ in told(top, tmp_path, lower)] == [f"/{number:04}" for number in range(1000)]
