"""`dsec node`: what is asked of it, what it refuses, what it says. The swap itself is tests/root/linux/test_swap.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.cli import node as node_command
from dsec.linux.swap import Area, Made
from dsec.linux.swap.zram import Compression

GIB = 1 << 30


class FakeSetup:
    """Makes nothing; remembers what it was asked for."""

    asked: list[tuple[str, object]]

    def __init__(self, state_dir: str) -> None:
        self.state_dir = state_dir

    def make_zram(self, size: int | None) -> Made:
        self.asked.append(("zram", size))
        return Made("zram", "/dev/zram0", size or GIB, "made")

    def make_file(self, path: str, size: int) -> Made:
        self.asked.append((path, size))
        return Made("file", path, size, "kept")

    def undo(self) -> list[Made]:
        self.asked.append(("undo", None))
        return [Made("zram", "/dev/zram0", GIB, "removed")]

    def ours(self) -> list[str]:
        return ["/dev/zram0"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    FakeSetup.asked = []
    monkeypatch.setattr(node_command, "Setup", FakeSetup)
    return FakeSetup.asked


def test_setup_makes_what_is_asked_for(node, asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert node.run("node", "setup").stdout == "zram /dev/zram0 of 1 GiB: made, and swapped on\n"
    node.run("node", "setup", "--zram", "8g")
    told = node.run("node", "setup", "--no-zram", "--swap-file", "swap", "--swap-size", "512m").stdout
    assert told == f"swap file {tmp_path}/swap of 512 MiB: there already\n"
    assert asked == [("zram", None), ("zram", 8 * GIB), (f"{tmp_path}/swap", GIB // 2)]
    made = node.json("node", "setup", "--swap-file", "/swap", "--swap-size", "1g")
    assert [(area["kind"], area["state"]) for area in made] == [("zram", "made"), ("file", "kept")]


def test_undo_stands_alone(node, asked):
    assert node.run("node", "setup", "--undo").stdout == "zram /dev/zram0 of 1 GiB: taken away\n"
    assert node.run("node", "setup", "--undo", "--zram", "1g").exit_code == 64
    assert asked == [("undo", None)]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--no-zram"], 64),
        (["--no-zram", "--zram", "1g"], 64),
        (["--swap-file", "/swap"], 64),
        (["--swap-size", "1g"], 64),
        (["--zram", "much"], 2),
        (["--zram", "0"], 2),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_made(node, asked, options, code):
    assert node.run("node", "setup", *options).exit_code == code
    assert asked == []


def test_status_tells_what_pausing_can_use(node, asked, monkeypatch, tmp_path):
    file = tmp_path / "swap"
    file.write_bytes(b"")
    areas = [Area("/dev/zram0", GIB, GIB // 2, 100), Area(str(file), GIB, 0, -2)]
    monkeypatch.setattr(node_command, "areas_in_use", lambda: areas)
    monkeypatch.setattr(node_command, "compression", lambda path: Compression("lz4", GIB // 2, GIB // 8))
    lines = node.run("node", "status").stdout.splitlines()
    assert lines[2].split() == ["/dev/zram0", "zram", "1", "GiB", "512", "MiB", "128", "MiB", "(lz4)", "dsec"]
    assert lines[3].split() == [str(file), "file", "1", "GiB", "0", "B", "-", "the", "machine"]
    status = node.json("node", "status")
    assert [(area["kind"], area["ours"]) for area in status["swap"]] == [("zram", True), ("file", False)]
    monkeypatch.setattr(node_command, "areas_in_use", list)
    assert "dsec node setup" in node.run("node", "status").stdout


def test_the_state_directory_is_the_nodes(asked, monkeypatch):
    monkeypatch.setenv("DSEC_STATE_DIR", "/elsewhere")
    assert node_command._state_dir() == "/elsewhere"
    monkeypatch.delenv("DSEC_STATE_DIR")
    assert Path(node_command._state_dir()) == Path("/var/lib/dsec")
