"""The pool on the real cgroup v1 hierarchies of this host."""

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsec.linux.cgroups import Cgroup, CgroupLimits, CgroupPool, Hierarchies

pytestmark = pytest.mark.needs("root", "cgroup-v1")

JOIN = "for g in {groups}; do echo 0 > $g/cgroup.procs || exit 99; done; exec {command}"


@pytest.fixture
def name() -> Iterator[str]:
    """A tree of this test's own; nothing of it may be there afterwards."""
    name = f"dsec-test{secrets.token_hex(4)}"
    yield name
    left = [path for h in Hierarchies.detect().all if os.path.isdir(path := f"{h.path}/{name}")]
    for path in left:
        for directory, _, _ in os.walk(path, topdown=False):
            os.rmdir(directory)
    assert left == []


@pytest.fixture
def pool(name: str) -> Iterator[CgroupPool]:
    pool = CgroupPool(name, Hierarchies.detect())
    yield pool
    assert pool.close()


@contextmanager
def run_in(group: Cgroup, command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shell command in the group, ended with the block."""
    with subprocess.Popen(["sh", "-c", JOIN.format(groups=" ".join(group.paths), command=command)]) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_joined(group: Cgroup, process: subprocess.Popen[bytes]) -> None:
    while not all(Path(path, "cgroup.procs").read_text() for path in group.paths):
        assert process.poll() is None


def wait_until_empty(group: Cgroup) -> None:
    """Ends since the test has a time limit, and only processes that are ending are waited for."""
    while group.processes():
        os.sched_yield()


def read(group: Cgroup, file: str) -> str:
    return next(Path(path, file) for path in group.paths if Path(path, file).exists()).read_text().strip()


def test_limits_are_those_asked_for(pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits(64 << 20, 0.5, 7))
    assert len(group.paths) == 4
    assert group.version == 1
    assert read(group, "memory.limit_in_bytes") == str(64 << 20)
    assert read(group, "memory.memsw.limit_in_bytes") == str(64 << 20)
    assert read(group, "cpu.cfs_quota_us") == "50000"
    assert read(group, "pids.max") == "7"
    assert pool.release(group)


@pytest.mark.parametrize("second", [32 << 20, 256 << 20, None])
def test_limits_change_both_ways(pool: CgroupPool, second: int | None) -> None:
    group = pool.acquire(CgroupLimits(64 << 20, 2.0, 7))
    assert pool.release(group)
    again = pool.acquire(CgroupLimits(second, None, None))
    assert again is group
    limit = int(read(again, "memory.limit_in_bytes"))
    assert limit == second if second is not None else limit > 1 << 60
    assert read(again, "memory.memsw.limit_in_bytes") == read(again, "memory.limit_in_bytes")
    assert read(again, "cpu.cfs_quota_us") == "-1"
    assert read(again, "pids.max") == "max"
    assert pool.release(again)


def test_memory_over_the_limit_is_killed_and_counted(pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits(memory_bytes=32 << 20))
    with run_in(group, "head -c 200m /dev/zero | tail >/dev/null 2>&1; exit 0") as process:
        process.wait(30)
    assert group.oom_kills() == 1
    assert pool.release(group)
    group = pool.acquire(CgroupLimits(memory_bytes=32 << 20))
    assert group.oom_kills() == 0
    assert int(read(group, "memory.failcnt")) == 0
    assert pool.release(group)


def test_forks_over_the_limit_are_refused_and_counted(pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits(pids=3))
    with run_in(group, "sh -c 'for i in 1 2 3 4 5 6; do sleep 0.2 & done 2>/dev/null; wait' 2>/dev/null") as process:
        process.wait(30)
    assert group.pids_refused() >= 1
    group.kill()
    wait_until_empty(group)
    assert pool.release(group)


def test_the_first_leaves_stay_since_a_removed_one_lingers(pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits(memory_bytes=64 << 20))
    for leaf in ("c0", "c0/below", "c3", "c4", "other"):
        os.mkdir(f"{group.memory}/{leaf}")
    assert pool.release(group)
    again = pool.acquire(CgroupLimits(memory_bytes=32 << 20))
    assert again.memory == group.memory
    kept = [name for name in ("c0", "c0/below", "c3", "c4", "other") if os.path.isdir(f"{again.memory}/{name}")]
    assert kept == ["c0", "c3"]
    assert pool.release(again)


def test_a_busy_group_is_set_aside_and_goes_with_its_leaves(pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits(memory_bytes=64 << 20))
    assert group.memory is not None
    os.mkdir(f"{group.memory}/c0")
    with run_in(group, "sleep 60") as process:
        wait_until_joined(group, process)
        assert group.pids_current() == 1
        assert group.memory_usage() > 0
        assert not pool.release(group)
        assert pool.acquire(CgroupLimits()) is not group
        process.kill()
        process.wait(10)
    assert pool.set_aside() == 0
    assert not os.path.exists(group.paths[0])
    assert pool.release(pool.adopt("s1"))


def test_what_a_crash_left_is_adopted_or_ended(name: str) -> None:
    before = CgroupPool(name, Hierarchies.detect())
    running, lost = before.acquire(CgroupLimits(pids=10)), before.acquire(CgroupLimits(pids=10))
    with run_in(running, "sleep 60") as kept, run_in(lost, "sleep 60") as orphan:
        wait_until_joined(running, kept)
        wait_until_joined(lost, orphan)
        after = CgroupPool(name, Hierarchies.detect())
        adopted = after.adopt(running.name)
        assert after.sweep() == 1
        assert orphan.wait(10) == -9
        assert kept.poll() is None
        assert adopted.pids_current() == 1
        assert after.acquire(CgroupLimits()).name not in (running.name, lost.name)
        assert not after.close()
        kept.kill()
        kept.wait(10)
    for group in (adopted, after.adopt("s2")):
        after.release(group)
    assert after.close()


def test_a_thousand_turns_make_no_more_groups_than_are_used_at_once(pool: CgroupPool) -> None:
    pool.prefill(4)
    for turn in range(1000):
        group = pool.acquire(CgroupLimits(64 << 20 if turn % 2 else 32 << 20, 1.0, 10 + turn % 3))
        assert pool.release(group)
    group = pool.acquire(CgroupLimits())
    for path in group.paths:
        assert len([entry for entry in os.scandir(os.path.dirname(path)) if entry.is_dir()]) == 4
    assert pool.release(group)
