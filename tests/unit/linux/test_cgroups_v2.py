"""The pool on cgroup v2, over a directory tree that behaves like the kernel's where the pool relies on it."""

import errno
import os
from pathlib import Path

import pytest

from dsec.linux import KernelError
from dsec.linux.cgroups import CgroupLimits, CgroupPool, Hierarchies, Hierarchy, files
from dsec.linux.cgroups.hierarchies import Controller
from libdsec.protocol.errors import DeadlineExceededError, InvalidArgumentError, UnsupportedOperationError

ALL: tuple[Controller, ...] = ("memory", "cpu", "pids", "freezer")
FILES = {
    "cgroup.procs": "",
    "cgroup.subtree_control": "",
    "cgroup.kill": "",
    "cgroup.freeze": "0\n",
    "cgroup.events": "populated 0\nfrozen 0\n",
    "memory.max": "max",
    "memory.swap.max": "max",
    "memory.current": "4096\n",
    "memory.events": "low 0\noom 0\noom_kill 0\n",
    "cpu.max": "max 100000",
    "pids.max": "max",
    "pids.current": "0\n",
    "pids.events": "max 0\n",
}


class FakeCgroups:
    """A mounted v2 hierarchy: directories get their files when made, and can be removed with them."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.writes: list[tuple[str, str]] = []
        self.freezes = True
        self._mkdir, self._rmdir, self._write = os.mkdir, os.rmdir, files.write
        (root / "cgroup.subtree_control").write_text("")
        patch.setattr(os, "mkdir", self._make)
        patch.setattr(os, "rmdir", self._remove)
        patch.setattr(files, "write", self._record)

    def _make(self, path: str | Path, mode: int = 0o777, **options: int) -> None:
        self._mkdir(path, mode, **options)
        if Path(path).is_relative_to(self.root):
            for name, content in FILES.items():
                (Path(path) / name).write_text(content)

    def _remove(self, path: str, **options: int) -> None:
        if Path(path).is_relative_to(self.root):
            if (Path(path) / "cgroup.procs").read_text():
                raise OSError(errno.EBUSY, "busy", path)
            if any(entry.is_dir() for entry in os.scandir(path)):
                raise OSError(errno.ENOTEMPTY, "not empty", path)
            for name in FILES:
                (Path(path) / name).unlink()
        self._rmdir(path, **options)

    def _record(self, directory: str, name: str, value: str) -> None:
        path = Path(directory) / name
        if not path.exists():
            raise KernelError(errno.ENOENT, "write", str(path))
        self.writes.append((f"{path.parent.name}/{name}", value))
        if name == "cgroup.kill":
            for procs in Path(directory).rglob("cgroup.procs"):
                procs.write_text("")
        elif name == "cgroup.freeze":
            path.write_text(value)
            if self.freezes:
                (Path(directory) / "cgroup.events").write_text(f"populated 1\nfrozen {value}\n")
        elif name == "cgroup.subtree_control":
            path.write_text("")
        else:
            path.write_text(value)

    def last(self) -> dict[str, str]:
        """What was written since the last call."""
        written, self.writes = dict(self.writes), []
        return written


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCgroups:
    return FakeCgroups(tmp_path, monkeypatch)


@pytest.fixture
def pool(fake: FakeCgroups) -> CgroupPool:
    return CgroupPool("dsec-test", Hierarchies((Hierarchy(str(fake.root), 2, ALL),)))


def test_the_tree_hands_controllers_down_and_a_group_gets_its_limits(fake: FakeCgroups, pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits(512 << 20, 1.5, 100))
    for directory in (fake.root, fake.root / "dsec-test"):
        assert (directory / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"
    assert group.paths == [f"{fake.root}/dsec-test/s0"]
    assert (group.memory, group.pids, group.version) == (group.paths[0], group.paths[0], 2)
    assert fake.last() == {
        "s0/memory.max": str(512 << 20),
        "s0/memory.swap.max": "0",
        "s0/cpu.max": "150000 100000",
        "s0/pids.max": "100",
    }
    assert group.memory_usage() == 4096


def test_a_group_used_again_writes_only_what_differs(fake: FakeCgroups, pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits(512 << 20, 1.0, 100))
    assert pool.release(group)
    fake.last()
    again = pool.acquire(CgroupLimits(512 << 20, 1.0, 100))
    assert again is group
    assert fake.last() == {}
    assert pool.release(again)
    pool.acquire(CgroupLimits(512 << 20, None, 50))
    assert fake.last() == {"s0/cpu.max": "max 100000", "s0/pids.max": "50"}


def test_kills_are_counted_from_when_the_group_was_taken(fake: FakeCgroups, pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits(512 << 20))
    events = fake.root / "dsec-test/s0/memory.events"
    events.write_text("low 0\noom 3\noom_kill 3\n")
    assert group.oom_kills() == 3
    pool.release(group)
    group = pool.acquire(CgroupLimits(512 << 20))
    assert group.oom_kills() == 0
    events.write_text("low 0\noom 4\noom_kill 4\n")
    assert group.oom_kills() == 1


def test_leaves_and_what_they_were_handed_are_gone_when_given_back(fake: FakeCgroups, pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits(pids=10))
    home = fake.root / "dsec-test/s0"
    for leaf in ("init", "c0", "c1"):
        os.mkdir(home / leaf)
    (home / "cgroup.subtree_control").write_text("memory pids\n")
    fake.last()
    assert pool.release(group)
    assert not [entry for entry in os.scandir(home) if entry.is_dir()]
    assert fake.last() == {"s0/cgroup.subtree_control": "-memory -pids"}


def test_a_group_with_processes_is_set_aside_and_comes_back_when_empty(fake: FakeCgroups, pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits())
    procs = fake.root / "dsec-test/s0/cgroup.procs"
    procs.write_text("4194303\n")
    assert not pool.release(group)
    assert pool.acquire(CgroupLimits()).name == "s1"
    assert pool.set_aside() == 1
    procs.write_text("")
    assert pool.set_aside() == 0
    assert not procs.exists()


def test_giving_back_twice_is_harmless(pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits())
    assert pool.release(group)
    assert pool.release(group)
    assert pool.acquire(CgroupLimits()) is not pool.acquire(CgroupLimits())


def test_after_a_crash_groups_are_adopted_or_swept(fake: FakeCgroups, pool: CgroupPool) -> None:
    for _ in range(3):
        pool.acquire(CgroupLimits(memory_bytes=1 << 30))
    procs = fake.root / "dsec-test/s2/cgroup.procs"
    procs.write_text("4194303\n")
    successor = CgroupPool("dsec-test", Hierarchies((Hierarchy(str(fake.root), 2, ALL),)))
    adopted = successor.adopt("s1")
    fake.last()
    assert successor.sweep() == 2
    assert fake.last()["s2/cgroup.kill"] == "1"
    assert sorted(p.name for p in (fake.root / "dsec-test").iterdir() if p.is_dir()) == ["s1"]
    assert successor.acquire(CgroupLimits()).name not in ("s0", "s1", "s2")
    # an adopted group's limits are not known, so all are written when it is taken again
    assert successor.release(adopted)
    fake.last()
    assert successor.acquire(CgroupLimits()).name == "s1"
    assert set(fake.last()) == {"s1/memory.max", "s1/memory.swap.max", "s1/cpu.max", "s1/pids.max"}


def test_a_frozen_group_is_adopted_as_it_is_and_thawed_when_given_back(fake: FakeCgroups, pool: CgroupPool) -> None:
    pool.acquire(CgroupLimits()).freeze(1)
    successor = CgroupPool("dsec-test", Hierarchies((Hierarchy(str(fake.root), 2, ALL),)))
    fake.last()
    adopted = successor.adopt("s0")
    assert adopted.frozen()
    assert fake.last() == {}
    assert successor.release(adopted)
    assert fake.last()["s0/cgroup.freeze"] == "0"
    assert not adopted.frozen()


def test_a_group_that_nobody_froze_is_given_back_without_a_write(fake: FakeCgroups, pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits())
    fake.last()
    assert pool.release(group)
    assert fake.last() == {}


def test_what_cannot_be_frozen_in_time_goes_on(fake: FakeCgroups, pool: CgroupPool) -> None:
    fake.freezes = False
    group = pool.acquire(CgroupLimits())
    with pytest.raises(DeadlineExceededError, match="cannot freeze s0") as caught:
        group.freeze(0)
    assert caught.value.details["stage"] == "freeze"
    assert fake.last()["s0/cgroup.freeze"] == "0"


def test_without_a_freezer_freezing_is_refused_and_thawing_is_nothing(fake: FakeCgroups) -> None:
    group = CgroupPool("dsec-test", Hierarchies((Hierarchy(str(fake.root), 2, ("memory",)),))).acquire(CgroupLimits())
    fake.last()
    with pytest.raises(UnsupportedOperationError, match="freezer"):
        group.freeze(1)
    assert not group.frozen()
    assert fake.last() == {}


def test_adopting_what_is_not_there_is_an_error(pool: CgroupPool) -> None:
    with pytest.raises(OSError, match="adopt cgroup") as caught:
        pool.adopt("s7")
    assert caught.value.errno == errno.ENOENT


def test_idle_groups_are_bounded_and_close_removes_all(fake: FakeCgroups) -> None:
    hierarchies = Hierarchies((Hierarchy(str(fake.root), 2, ALL),))
    pool = CgroupPool("dsec-test", hierarchies, max_idle=2)
    for group in [pool.acquire(CgroupLimits()) for _ in range(5)]:
        pool.release(group)
    assert len([p for p in (fake.root / "dsec-test").iterdir() if p.is_dir()]) == 2
    pool.prefill(10)
    assert len([p for p in (fake.root / "dsec-test").iterdir() if p.is_dir()]) == 2
    assert pool.close()
    assert not (fake.root / "dsec-test").exists()


def test_a_limit_without_a_controller_is_refused_before_anything_is_made(fake: FakeCgroups) -> None:
    pool = CgroupPool("dsec-test", Hierarchies((Hierarchy(str(fake.root), 2, ("memory",)),)))
    with pytest.raises(UnsupportedOperationError, match="pids"):
        pool.acquire(CgroupLimits(pids=10))
    assert not (fake.root / "dsec-test").exists()


@pytest.mark.parametrize(
    "limits", [{"memory_bytes": 0}, {"memory_bytes": -1}, {"cpu_cores": 0.0}, {"cpu_cores": 1e9}, {"pids": 0}]
)
def test_a_limit_that_no_kernel_takes_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="it must be from") as caught:
        CgroupLimits(**limits)
    assert caught.value.details["field"] == next(iter(limits))


def test_a_group_whose_directory_somebody_removed_is_not_handed_out(fake: FakeCgroups, pool: CgroupPool) -> None:
    assert pool.release(pool.acquire(CgroupLimits(pids=10)))
    os.rmdir(fake.root / "dsec-test/s0")
    assert pool.acquire(CgroupLimits(pids=20)).name == "s1"
    assert pool.set_aside() == 0


def test_a_root_that_cannot_hand_down_says_what_to_do(fake: FakeCgroups, pool: CgroupPool) -> None:
    (fake.root / "cgroup.subtree_control").unlink()
    (fake.root / "cgroup.subtree_control").mkdir()
    with pytest.raises(UnsupportedOperationError, match="child group"):
        pool.acquire(CgroupLimits())
