"""Benches on a node of their own: the JSON they print, and that nothing stays, whatever ends them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dsec.bench import layer_build
from dsec.bench.ground import Options
from dsec.bench.rounds import silent
from dsec.bench.run import run

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether", "mmdebstrap", "cc")

KEYS = {
    "create": {"crun", "runc", "bwrap", "docker", "floor"},
    "exec": {"crun", "runc", "docker", "floor"},
    "lifecycle": {"crun", "docker", "floor"},
    "idle-memory": {"floor"},
    "layer-build": {"tar_gz", "mkfs_erofs"},
}


def _start(environment: dict[str, str], scratch: Path, name: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dsec", "bench", name, "--scratch", str(scratch), *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _left(scratch: Path) -> list[str]:
    """What a bench could leave: files, mounts, processes, control groups."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    processes = [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and f"{scratch}/".encode() in _command_line(entry)
    ]
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob("*/dsec-bench-*")]
    files = [*(entry.name for entry in scratch.iterdir()), *map(str, Path("/tmp").glob("dsec-bench-*"))]
    return [*files, *(line for line in mounts if f" {scratch}/" in line), *processes, *groups]


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _check(report: dict[str, Any]) -> None:
    assert list(report) == ["name", "ours", "peers", "floor", "ratios", "machine"]
    assert set(report["ratios"]) == KEYS[report["name"]]
    assert report["ours"]["samples"] >= 4
    for key, ratio in report["ratios"].items():
        other = report["floor"] if key == "floor" else report["peers"][key]
        assert (ratio is None) == (other is None)
        assert other is None or ratio == pytest.approx(report["ours"]["value"] / other["value"])


def test_benches_on_one_ground(
    node_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.bench.idle_memory._REST_S", 0.05)
    monkeypatch.setenv("DSEC_AETHER", node_environment["DSEC_AETHER"])
    names = ["create", "lifecycle", "idle-memory"]
    options = Options(scratch=str(tmp_path), state_dir=node_environment["DSEC_STATE_DIR"])

    async def reports() -> list[Any]:
        return [msgspec.to_builtins(report) async for report in run(names, 4, options, lambda text: None)]

    found = asyncio.run(reports())
    assert [report["name"] for report in found] == names
    for report in found:
        _check(report)
    assert _left(tmp_path) == []


def test_the_json_of_the_command(node_environment: dict[str, str], tmp_path: Path) -> None:
    with _start(node_environment, tmp_path, "exec", "-n", "4", "--json") as process:
        out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    _check(json.loads(out))
    assert _left(tmp_path) == []


def test_a_layer_of_a_small_tree(tmp_path: Path) -> None:
    lower, directory = tmp_path / "lower", tmp_path / "work"
    (lower / "a").mkdir(parents=True)
    (lower / "a" / "file").write_bytes(b"x" * 100_000)
    directory.mkdir()
    ground: Any = SimpleNamespace(directory=directory, lower=lower, load=0.0)
    _check(msgspec.to_builtins(asyncio.run(layer_build.measure(ground, 4, silent))))
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_stays_of_an_interrupted_bench(
    node_environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    with _start(node_environment, tmp_path, "create", "-n", "100000") as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/create/*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert _left(tmp_path) == []
