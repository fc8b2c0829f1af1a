"""Directories that hostile code has filled are removed whole, and nothing beside them is touched."""

import errno
import os
from pathlib import Path

import pytest

from dsec.linux.removal import Trash, remove_tree


def test_nothing_there_is_fine(tmp_path: Path) -> None:
    remove_tree(str(tmp_path / "none"))


def test_links_are_removed_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "directory").symlink_to(outside)
    (tree / "sub" / "file").symlink_to(outside / "kept")
    (tree / "up").symlink_to("..")
    os.link(outside / "kept", tree / "hard")
    remove_tree(str(tree))
    assert not tree.exists()
    assert (outside / "kept").read_text() == "kept"


def test_a_tree_deeper_than_any_path_goes(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    descriptor = os.open(tree, os.O_RDONLY)
    for level in range(600):
        os.mkdir("d" * 200, dir_fd=descriptor)
        os.mknod(f"file{level}", dir_fd=descriptor)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    remove_tree(str(tree))
    assert not tree.exists()


def test_odd_names_go(tmp_path: Path) -> None:
    tree = os.fsencode(tmp_path / "tree")
    os.mkdir(tree)
    for name in (b"\xff\xfe", b"new\nline", b"-rf", b" ", b"\x1b[2J", b"." + b"x" * 254, b"0" * 255):
        os.mkdir(os.path.join(tree, name))
        with open(os.path.join(tree, name, name), "wb"):
            pass
    os.mkfifo(os.path.join(tree, b"pipe"))
    remove_tree(os.fsdecode(tree))
    assert not os.path.exists(tree)


def test_more_names_than_a_batch_go(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "many").mkdir(parents=True)
    for number in range(9000):
        os.mknod(tree / "many" / str(number))
    remove_tree(str(tree))
    assert not tree.exists()


def test_a_file_in_the_place_of_the_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot open .*/file"):
        remove_tree(str(tmp_path / "file"))


def test_what_is_thrown_away_is_gone_at_once_and_removed_in_the_background(tmp_path: Path) -> None:
    trash = Trash(str(tmp_path / "trash"))
    for number in range(20):
        tree = tmp_path / f"tree{number}"
        (tree / "a" / "b").mkdir(parents=True)
        thrown = trash.throw(str(tree))
        assert thrown is not None
        assert not tree.exists()
        trash.empty_later(thrown)
    trash.close()
    assert trash.pending() == 0
    assert trash.failures == []
    assert trash.throw(str(tmp_path / "tree0")) is None


def test_the_worker_survives_a_tree_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short of descriptors, for one."""
    scandir = os.scandir
    left = [2]

    def failing(directory: int) -> object:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return scandir(directory)

    monkeypatch.setattr(os, "scandir", failing)
    trash = Trash(str(tmp_path / "trash"))
    for number in range(3):
        (tmp_path / f"tree{number}").mkdir()
        trash.empty_later(trash.throw(str(tmp_path / f"tree{number}")) or "")
    trash.close()
    monkeypatch.undo()
    assert trash.pending() == 2
    assert [failure.startswith("cannot list ") for failure in trash.failures] == [True, True]


def test_what_a_crash_left_in_the_trash_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "trash" / "left" / "deep").mkdir(parents=True)
    trash = Trash(str(tmp_path / "trash"))
    assert trash.pending() == 1
    trash.empty()
    assert trash.pending() == 0
