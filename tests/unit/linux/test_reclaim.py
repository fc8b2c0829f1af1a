"""What is asked of the kernel to give memory back: on cgroup v2 over files, and how advice is cut into calls."""

import errno
import os
import threading
from pathlib import Path

import pytest

from dsec.linux import KernelError, advice, reclaim, syscalls
from dsec.linux.cgroups import Cgroup, files

MIB = 1 << 20


class FakeMemory:
    """A v2 directory that has so much to give, and gives it in what is asked for."""

    def __init__(self, path: Path, gives: int, stays: int) -> None:
        self.path, self.gives, self.stays = path, gives, stays
        self.writes: list[tuple[str, str]] = []
        for name, text in (
            ("memory.swap.max", "0\n"),
            ("memory.reclaim", ""),
            ("memory.stat", ""),
            ("cgroup.procs", ""),
        ):
            (path / name).write_text(text)
        self._tell()

    def write(self, directory: str, name: str, value: str) -> None:
        self.writes.append((name, value))
        if name != "memory.reclaim":
            (self.path / name).write_text(value)
            return
        got = min(int(value), self.gives)
        self.gives -= got
        self._tell()
        if got < int(value):
            raise KernelError(errno.EAGAIN, "write", f"{directory}/{name}")

    def _tell(self) -> None:
        (self.path / "memory.current").write_text(str(self.gives + self.stays))


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives: int) -> tuple[FakeMemory, Cgroup]:
    memory = FakeMemory(tmp_path, gives, MIB)
    monkeypatch.setattr(files, "write", memory.write)
    return memory, Cgroup("s0", ((str(tmp_path), 2, ("memory",)),))


def test_v2_reclaims_in_steps_until_there_is_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, group = fake(tmp_path, monkeypatch, 100 * MIB)
    got = reclaim.reclaim(group, 60)
    assert (got.charged_before, got.charged_after, got.bytes) == (101 * MIB, MIB, 100 * MIB)
    assert got.complete
    steps = [value for name, value in memory.writes if name == "memory.reclaim"]
    assert steps == [str(32 * MIB)] * 6
    # swap is allowed for as long as it takes, and no longer
    assert memory.writes[0] == ("memory.swap.max", "max")
    assert memory.writes[-1] == ("memory.swap.max", "0")


def test_v2_stops_when_told_to_and_puts_the_swap_bound_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, group = fake(tmp_path, monkeypatch, 100 * MIB)
    stop = threading.Event()
    stop.set()
    got = reclaim.reclaim(group, 60, stop)
    assert (got.bytes, got.complete) == (0, False)
    assert (tmp_path / "memory.swap.max").read_text() == "0"
    assert not reclaim.reclaim(group, 0).complete
    assert memory.gives == 100 * MIB


def test_v2_that_refuses_is_told_and_the_swap_bound_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, group = fake(tmp_path, monkeypatch, 100 * MIB)

    def refuse(directory: str, name: str, value: str) -> None:
        if name == "memory.reclaim":
            raise KernelError(errno.EACCES, "write", name)
        memory.write(directory, name, value)

    monkeypatch.setattr(files, "write", refuse)
    with pytest.raises(KernelError, match=r"memory\.reclaim"):
        reclaim.reclaim(group, 60)
    assert (tmp_path / "memory.swap.max").read_text() == "0"


def test_many_processes_are_pinned_some_at_a_time_and_without_descriptors_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    opened: set[int] = set()
    most = 0

    def pidfd_open(pid: int) -> int:
        nonlocal most
        if pid % 10 == 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        opened.add(pid)
        most = max(most, len(opened))
        return pid

    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    monkeypatch.setattr(os, "close", opened.discard)
    monkeypatch.setattr(advice, "mappings", lambda pid, **_: looked_at.append(pid) or [])
    group = Cgroup("s0", ((str(tmp_path), 2, ("pids",)),))
    monkeypatch.setattr(Cgroup, "processes", lambda _: set(range(1, 1001)))
    assert reclaim._page_out(group, reclaim._Limit(float("inf"), reclaim._NEVER))
    assert looked_at == [pid for pid in range(1, 1001) if pid % 10]
    assert (most <= reclaim._PINNED, opened) == (True, set())


def test_advice_goes_on_behind_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = (0x3000, 0x1000)
    calls: list[list[tuple[int, int]]] = []

    def kernel(pidfd: int, ranges: list[tuple[int, int]], advised: int) -> int:
        calls.append(list(ranges))
        before = ranges[: ranges.index(refused)] if refused in ranges else ranges
        if not before:
            raise KernelError(errno.EINVAL, "process_madvise", "it")
        return sum(length for _, length in before)

    monkeypatch.setattr(syscalls, "process_madvise", kernel)
    ranges = [(0x1000, 0x1000), (0x2000, 0x1000), refused, (0x5000, 0x4000)]
    assert advice.advise(3, ranges, advice.PAGEOUT) == 0x6000
    assert calls == [ranges, [refused, (0x5000, 0x4000)], [(0x5000, 0x4000)]]


def test_advice_in_part_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[tuple[int, int]]] = []

    def kernel(pidfd: int, ranges: list[tuple[int, int]], advised: int) -> int:
        calls.append(list(ranges))
        return min(0x1800, sum(length for _, length in ranges))

    monkeypatch.setattr(syscalls, "process_madvise", kernel)
    assert advice.advise(3, [(0x1000, 0x1000), (0x8000, 0x1000)], advice.PAGEOUT) == 0x2000
    assert calls[1] == [(0x8800, 0x800)]


@pytest.mark.parametrize(("number", "fatal"), [(errno.ESRCH, False), (errno.EPERM, True), (errno.ENOSYS, True)])
def test_a_process_that_is_gone_is_fine_and_a_kernel_that_refuses_is_not(
    monkeypatch: pytest.MonkeyPatch, number: int, fatal: bool
) -> None:
    def kernel(pidfd: int, ranges: list[tuple[int, int]], advised: int) -> int:
        raise KernelError(number, "process_madvise", "it")

    monkeypatch.setattr(syscalls, "process_madvise", kernel)
    if fatal:
        with pytest.raises(KernelError, match="process_madvise"):
            advice.advise(3, [(0x1000, 0x1000)], advice.PAGEOUT)
    else:
        assert advice.advise(3, [(0x1000, 0x1000)], advice.PAGEOUT) == 0


def test_mappings_leave_the_kernels_own_out() -> None:
    found = advice.mappings(os.getpid())
    own = [line for line in Path("/proc/self/maps").read_text().splitlines() if "[v" in line]
    starts = {start for start, _ in found}
    assert found
    assert own
    assert not starts & {int(line.split("-")[0], 16) for line in own}
    assert advice.mappings(4_194_304) == []


def test_mappings_without_a_file_are_told_apart() -> None:
    anonymous = set(advice.mappings(os.getpid(), anonymous=True))
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    filed = {int(line[0].split("-")[0], 16) for line in lines if line[4] != "0"}
    assert anonymous
    assert not filed & {start for start, _ in anonymous}


def test_batches_are_bounded_in_bytes_and_number() -> None:
    cut = list(reclaim._batches([(0, 80 * MIB), (100 * MIB, MIB)], 32 * MIB))
    assert cut == [
        [(0, 32 * MIB)],
        [(32 * MIB, 32 * MIB)],
        [(64 * MIB, 16 * MIB), (100 * MIB, MIB)],
    ]
    many = list(reclaim._batches([(n * 8192, 4096) for n in range(3000)], 32 * MIB))
    assert [len(batch) for batch in many] == [1024, 1024, 952]
