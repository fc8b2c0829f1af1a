"""Directories read by descriptors."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from layer_trees import Build, describe_directory, describe_image, noise

from dsec.store.sources import DirectorySource, Entry, HardLink
from dsec.store.sources import directory as directory_module
from libdsec.protocol.errors import FileOperationError, InvalidArgumentError


def _sample(top: Path) -> None:
    (top / "b" / "c").mkdir(parents=True)
    (top / "a").write_bytes(noise(5000))
    (top / "b" / "large").write_bytes(noise(600_000))
    (top / "b" / "c" / "empty").touch()
    os.link(top / "a", top / "b" / "a2")
    os.symlink("a", top / "link")
    os.mkfifo(top / "pipe")
    os.utime(top / "a", ns=(0, 1_234_567_890_987_654_321))
    (top / "b").chmod(0o2750)


def test_a_directory_reads_back(build: Build, tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    _sample(top)
    first, second = build(DirectorySource(top)), build(DirectorySource(str(top)))
    assert describe_image(first) == describe_directory(top)
    assert first.layer_digest == second.layer_digest


def test_the_order_is_that_of_bytes(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    for name in (b"\xff\xfe", b"z", b"\xc3\xa9", b"a"):
        Path(os.fsdecode(os.fsencode(top) + b"/" + name)).touch()
    (top / "dir").mkdir()
    (top / "dir" / "inner").touch()
    paths = [item.path for item in DirectorySource(top).entries()]
    assert paths == [b"", b"a", b"z", b"\xc3\xa9", b"\xff\xfe", b"dir", b"dir/inner"]


def test_links_from_outside_do_not_count(build: Build, tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    (top / "x").write_text("x")
    os.link(top / "x", tmp_path / "outside")
    assert describe_image(build(DirectorySource(top)))[b"x"][4] == 1


def test_more_levels_than_descriptors(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "MAX_OPEN_LEVELS", 3)
    top = tmp_path / "top"
    for branch in ("a", "b"):
        (top / "/".join(branch * 12)).mkdir(parents=True)
        (top / branch / branch / branch / "file").write_text(branch)
        (top / branch / branch / "z" / "y").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    assert describe_image(build(DirectorySource(top))) == describe_directory(top)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_moved_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "MAX_OPEN_LEVELS", 1)
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    entries = DirectorySource(top).entries()
    while next(entries).path != b"a/b":
        pass
    os.rename(top / "a" / "b", tmp_path / "other" / "b")
    with pytest.raises(InvalidArgumentError, match="was moved"):
        list(entries)


def test_an_abandoned_walk_gives_its_descriptors_back(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    _sample(top)
    before = len(os.listdir("/proc/self/fd"))
    entries = DirectorySource(top).entries()
    for item in entries:
        if item.path == b"b/large":
            break
    assert len(os.listdir("/proc/self/fd")) > before
    entries.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_cut_while_it_is_read(build: Build, tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    (top / "a").write_bytes(noise(5000))
    source = DirectorySource(top)
    entries = source.entries

    def cutting():  # type: ignore[no-untyped-def]
        for item in entries():
            if item.path == b"a":
                os.truncate(top / "a", 100)
            yield item

    source.entries = cutting  # type: ignore[method-assign]
    with pytest.raises(InvalidArgumentError, match="/a: ends 4900 bytes"):
        build(source)


def test_a_file_replaced_by_a_link(tmp_path: Path) -> None:
    """The name is opened without following, whatever it was a moment before."""
    top = tmp_path / "top"
    top.mkdir()
    (tmp_path / "secret").write_text("secret")
    for name in "ab":
        (top / name).write_text(name)
    entries = DirectorySource(top).entries()
    while next(entries).path != b"a":
        pass
    (top / "b").unlink()
    os.symlink(tmp_path / "secret", top / "b")
    with pytest.raises(FileOperationError, match="/b: "):
        list(entries)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileOperationError, match="No such file") as caught:
        list(DirectorySource(tmp_path / "missing").entries())
    assert caught.value.details == {"path": "/", "errno": 2}


def test_entries_say_what_they_are(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    _sample(top)
    found = {item.path: item for item in DirectorySource(top).entries()}
    assert found[b"b/a2"] == HardLink(b"b/a2", b"a")
    link = found[b"link"]
    assert isinstance(link, Entry)
    assert (stat.S_ISLNK(link.node.mode), link.node.target, link.content) == (True, b"a", None)
