"""The pool on a real cgroup v2 hierarchy, with whatever controllers it has here: none on a hybrid host, and even then
processes, leaves, killing and what is handed down are the kernel's own."""

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.linux.cgroups import Cgroup, CgroupLimits, CgroupPool, Hierarchies, Hierarchy

pytestmark = pytest.mark.needs("root")


def mounted_v2() -> str | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            return line.split()[4]
    return None


@pytest.fixture
def hierarchies() -> Hierarchies:
    path = mounted_v2()
    if path is None:
        pytest.skip("no cgroup v2 hierarchy is mounted")
    has = Path(path, "cgroup.controllers").read_text().split()
    return Hierarchies((Hierarchy(path, 2, tuple(c for c in ("memory", "cpu", "pids") if c in has)),))  # type: ignore[misc]


@pytest.fixture
def name(hierarchies: Hierarchies) -> Iterator[str]:
    name = f"dsec-test{secrets.token_hex(4)}"
    yield name
    root = Path(hierarchies.all[0].path, name)
    left = root.exists()
    for directory, _, _ in os.walk(root, topdown=False):
        os.rmdir(directory)
    assert not left


def join(group: Cgroup, leaf: str) -> subprocess.Popen[bytes]:
    """A process in a leaf, as PID 1 of a sandbox is."""
    home = Path(group.paths[0], leaf)
    home.mkdir()
    process = subprocess.Popen(["sleep", "60"])
    (home / "cgroup.procs").write_text(str(process.pid))
    return process


def test_a_group_with_leaves_comes_back_when_its_processes_are_gone(hierarchies: Hierarchies, name: str) -> None:
    pool = CgroupPool(name, hierarchies)
    group = pool.acquire(CgroupLimits())
    with join(group, "init") as process:
        assert group.version == 2
        assert group.processes() == {process.pid}
        assert not pool.release(group)
        process.kill()
        process.wait(10)
    assert pool.set_aside() == 0
    again = pool.acquire(CgroupLimits())
    os.mkdir(f"{again.paths[0]}/c0")
    assert pool.release(again)
    assert pool.acquire(CgroupLimits()) is again
    assert not [entry for entry in os.scandir(again.paths[0]) if entry.is_dir()]
    assert pool.release(again)
    assert pool.close()


def test_what_a_crash_left_is_killed_whole(hierarchies: Hierarchies, name: str) -> None:
    lost = CgroupPool(name, hierarchies).acquire(CgroupLimits())
    with join(lost, "c0") as one, join(lost, "c1") as two:
        after = CgroupPool(name, hierarchies)
        assert after.sweep() == 1
        assert one.wait(10) == two.wait(10) == -9
    assert after.close()
