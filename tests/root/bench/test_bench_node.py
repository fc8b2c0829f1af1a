"""Benches on a node of their own: the JSON they print, and that nothing stays, whatever ends them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dsec.bench import layer_build
from dsec.bench.ground import Options
from dsec.bench.node import is_of, unmount_below
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


@contextlib.contextmanager
def _started(environment: dict[str, str], scratch: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A bench. When the test fails it does not run on, nor does what it has started."""
    with subprocess.Popen(
        [sys.executable, "-m", "dsec", "bench", name, "--scratch", str(scratch), *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        except BaseException:
            _end(process, scratch)
            raise


def _end(process: subprocess.Popen[str], scratch: Path) -> None:
    """As it ends itself, or else by the names of its ground, which nothing else has."""
    process.terminate()
    try:
        process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    for ground in scratch.iterdir():
        for entry in _processes():
            if is_of(ground, entry):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
        unmount_below(ground)


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Where a bench may work that leaves nothing: files, mounts, processes, control groups."""
    before = _outside()
    yield tmp_path
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    processes = [entry.name for entry in _processes() if f"{tmp_path}/".encode() in _command_line(entry)]
    files = [entry.name for entry in tmp_path.iterdir()]
    left = [*files, *(line for line in mounts if f" {tmp_path}/" in line), *processes, *(_outside() - before)]
    assert left == []


def _outside() -> set[str]:
    """What benches have elsewhere, and no process that runs has named: benches of others may run."""
    names = [*Path("/sys/fs/cgroup").glob("*/dsec-bench-*"), *Path("/tmp").glob("dsec-bench-*")]
    running = [_command_line(entry) for entry in _processes()] if names else []
    return {
        str(path)
        for path in names
        if not any(path.name.removesuffix("-run").encode() in command for command in running)
    }


def _processes() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _check(report: dict[str, Any]) -> None:
    keys = ["name", "ours", "peers", "floor", "ratios", "machine"]
    assert [key for key in report if key != "notes"] == keys  # which may be left out when there are none
    assert set(report["ratios"]) == KEYS[report["name"]]
    assert report["ours"]["samples"] >= 4
    for key, ratio in report["ratios"].items():
        other = report["floor"] if key == "floor" else report["peers"][key]
        # what came to nothing is no measure
        assert (ratio is None) == (other is None or other["value"] <= 0)
        assert ratio is None or ratio == pytest.approx(report["ours"]["value"] / other["value"])


def test_benches_on_one_ground(
    node_environment: dict[str, str], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.bench.idle_memory._REST_S", 0.05)
    monkeypatch.setattr("dsec.bench.rounds.SETTLE_S", 0.0)
    monkeypatch.setenv("DSEC_AETHER", node_environment["DSEC_AETHER"])
    names = ["create", "lifecycle", "idle-memory"]
    options = Options(scratch=str(scratch), state_dir=node_environment["DSEC_STATE_DIR"])

    async def reports() -> list[Any]:
        return [msgspec.to_builtins(report) async for report in run(names, 4, options, lambda text: None)]

    found = asyncio.run(reports())
    assert [report["name"] for report in found] == names
    for report in found:
        _check(report)


def test_the_json_of_the_command(node_environment: dict[str, str], scratch: Path) -> None:
    with _started(node_environment, scratch, "exec", "-n", "4", "--json") as process:
        out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    _check(json.loads(out))


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
    node_environment: dict[str, str], scratch: Path, number: signal.Signals
) -> None:
    with _started(node_environment, scratch, "create", "-n", "100000") as process:
        deadline = time.monotonic() + 50
        while not list(scratch.glob("*/state/uppers/[0-9a-f]*/*")):  # until a sandbox of its node is there
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate(timeout=40)
    assert process.returncode == 130, err
