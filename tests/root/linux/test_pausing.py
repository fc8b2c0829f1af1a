"""A paused group's memory really goes, with a swap file and with zram, and everything comes back unchanged."""

import asyncio
import hashlib
import os
import random
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsec.drivers.container import pausing
from dsec.drivers.container.pausing import freeze_and_reclaim, prefetch_and_thaw
from dsec.linux import KernelError, fanotify
from dsec.linux.cgroups import Cgroup, CgroupLimits, CgroupPool, Hierarchies
from dsec.linux.cgroups.freezer import is_in_a_read
from dsec.linux.reclaim import prefetch, reclaim
from dsec.linux.swap import Setup
from libdsec.protocol.errors import DeadlineExceededError, InternalError

pytestmark = pytest.mark.needs("root", "cgroup-v1")
MIB = 1 << 20
HELD = 24 * MIB

HOLDER = """
import hashlib, mmap, os, random, sys
size, what, where = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if what == "file":
    with open(where, "wb") as made:
        made.write(random.Random(1).randbytes(size))
    held = mmap.mmap(os.open(where, os.O_RDONLY), size, prot=mmap.PROT_READ)
elif what == "tmpfs":
    descriptor = os.memfd_create("held")
    os.write(descriptor, random.Random(1).randbytes(size))
else:
    held = random.Random(1).randbytes(size)
for line in sys.stdin:
    data = os.pread(descriptor, size, 0) if what == "tmpfs" else held
    print(hashlib.sha256(data).hexdigest(), flush=True)
    del data
"""


@pytest.fixture
def pool() -> Iterator[CgroupPool]:
    pool = CgroupPool(f"dsec-test{secrets.token_hex(4)}", Hierarchies.detect())
    yield pool
    assert pool.close()


@pytest.fixture
def swap_file(disk: Path) -> Iterator[Setup]:
    setup = Setup(str(disk / "state"))
    setup.make_file(str(disk / "swap"), 256 * MIB)
    yield setup
    setup.undo()


@contextmanager
def holder(pool: CgroupPool, what: str, where: str = "") -> Iterator[tuple[Cgroup, subprocess.Popen[str]]]:
    group = pool.acquire(CgroupLimits(memory_bytes=256 * MIB, pids=20))
    pipe = subprocess.PIPE
    command = " && ".join(f"echo 0 >{path}/cgroup.procs" for path in group.paths) + ' && exec "$0" "$@"'
    arguments = ["sh", "-c", command, sys.executable, "-c", HOLDER, str(HELD), what, where]
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert ask(process) == EXPECTED
            yield group, process
        finally:
            process.kill()
            group.thaw()
            process.wait(10)
            assert pool.release(group)


def ask(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


EXPECTED = hashlib.sha256(random.Random(1).randbytes(HELD)).hexdigest()


@pytest.mark.parametrize("what", ["anonymous", "tmpfs", "file"])
async def test_with_a_swap_file_everything_goes_and_comes_back(
    pool: CgroupPool, swap_file: Setup, disk: Path, what: str
) -> None:
    with holder(pool, what, str(disk / "data")) as (group, process):
        for _ in range(3):
            got = await freeze_and_reclaim(group, deadline_s=30)
            assert group.frozen()
            assert got.complete
            assert got.charged_before > 0.9 * HELD
            assert got.bytes > 0.9 * HELD
            assert group.memory_usage() < 0.1 * HELD
            await prefetch_and_thaw(group, deadline_s=30)
            assert not group.frozen()
            assert ask(process) == EXPECTED


@pytest.mark.skipif(not Path("/sys/class/zram-control").exists(), reason="needs zram")
async def test_with_zram_the_group_is_charged_nothing(pool: CgroupPool, disk: Path) -> None:
    setup = Setup(str(disk / "state"))
    setup.make_zram(128 * MIB)
    try:
        with holder(pool, "anonymous") as (group, process):
            got = await freeze_and_reclaim(group, deadline_s=30)
            assert got.bytes > 0.9 * HELD
            await prefetch_and_thaw(group, deadline_s=30)
            assert ask(process) == EXPECTED
    finally:
        setup.undo()


async def test_files_go_without_any_swap(pool: CgroupPool, disk: Path) -> None:
    with holder(pool, "file", str(disk / "data")) as (group, process):
        got = await freeze_and_reclaim(group, deadline_s=30)
        assert got.bytes > 0.9 * HELD
        await prefetch_and_thaw(group, deadline_s=30)
        assert ask(process) == EXPECTED


def test_no_time_is_no_failure_and_told(pool: CgroupPool, swap_file: Setup) -> None:
    with holder(pool, "anonymous") as (group, process):
        group.freeze(5)
        got = reclaim(group, 0)
        assert not got.complete
        assert got.resident_after > HELD
        assert prefetch(group, 0) == 0
        group.thaw()
        assert ask(process) == EXPECTED


def test_a_group_whose_processes_end_meanwhile(pool: CgroupPool, swap_file: Setup) -> None:
    with holder(pool, "anonymous") as (group, process):
        process.kill()
        process.wait(10)
        assert reclaim(group, 5).resident_after == 0
        assert prefetch(group, 5) == 0


async def test_a_cancel_at_any_moment_leaves_it_running(pool: CgroupPool, swap_file: Setup) -> None:
    with holder(pool, "anonymous") as (group, process):
        for delay in (0, 0.001, 0.01, 0.03):
            work = asyncio.create_task(freeze_and_reclaim(group, deadline_s=30))
            await asyncio.sleep(delay)
            if work.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await work
            else:  # it was quicker
                await work
                assert group.frozen()
                group.thaw()
            assert not group.frozen()
        assert ask(process) == EXPECTED
        await freeze_and_reclaim(group, deadline_s=30)
        work = asyncio.create_task(prefetch_and_thaw(group, deadline_s=30))
        await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert not group.frozen()
        assert ask(process) == EXPECTED


async def test_a_failure_of_any_stage_leaves_it_running_and_names_the_stage(
    pool: CgroupPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KernelError(5, "reclaim", "it")

    with holder(pool, "anonymous") as (group, process):
        monkeypatch.setattr(pausing, "reclaim", broken)
        with pytest.raises(InternalError, match="cannot pause") as caught:
            await freeze_and_reclaim(group, deadline_s=5)
        assert caught.value.details["stage"] == "reclaim"
        assert ask(process) == EXPECTED
        with monkeypatch.context() as patch:
            patch.setattr(Cgroup, "try_freeze", lambda _: False)
            with pytest.raises(DeadlineExceededError) as late:
                await freeze_and_reclaim(group, deadline_s=0)
        assert late.value.details["stage"] == "freeze"
        assert ask(process) == EXPECTED
        monkeypatch.setattr(pausing, "prefetch", broken)
        group.freeze(5)
        await prefetch_and_thaw(group, deadline_s=5)
        assert ask(process) == EXPECTED


async def test_those_that_wait_for_their_turn_are_frozen_meanwhile(pool: CgroupPool) -> None:
    turns = asyncio.Semaphore(0)
    with holder(pool, "anonymous") as (group, process):
        got = await freeze_and_reclaim(group, deadline_s=0.05, turns=turns)
        assert (got.bytes, got.complete) == (0, False)
        assert group.frozen()
        await prefetch_and_thaw(group, deadline_s=5)
        assert ask(process) == EXPECTED


@pytest.mark.needs("pre-content")
def test_a_read_that_waits_for_its_data_is_not_stopped_in_the_middle(pool: CgroupPool, disk: Path) -> None:
    (disk / "data").write_bytes(b"x" * 4096)
    group, events = pool.acquire(CgroupLimits(memory_bytes=64 * MIB, pids=20)), fanotify.open_group()
    fanotify.mark(events, str(disk / "data"))
    command = " && ".join(f"echo 0 >{path}/cgroup.procs" for path in group.paths) + f" && exec cat {disk}/data"

    done = threading.Event()
    let_go_on: list[bool] = []

    def answer_once_it_was_let_go_on() -> None:
        while not group.frozen():
            time.sleep(0.0005)
        while group.frozen():
            time.sleep(0.0005)
        let_go_on.append(process.poll() is None)
        while not done.wait(0.01):
            answer_all(events)

    answers = threading.Thread(target=answer_once_it_was_let_go_on, daemon=True)
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE) as process:
        try:
            while not any(map(is_in_a_read, group.freezable_in_a_read())):
                time.sleep(0.01)
            answers.start()
            asyncio.run(pausing.freeze(group, deadline_s=30.0))
            assert let_go_on == [True]
            assert not any(map(is_in_a_read, group.freezable_in_a_read()))
        finally:
            group.thaw()
            if answers.is_alive():
                assert process.communicate(timeout=10)[0] == b"x" * 4096
            done.set()
            os.close(events)
            assert process.wait(10) == 0
            assert pool.release(group)


def answer_all(events: int) -> None:
    while (event := fanotify.read_event(events)) is not None:
        fanotify.answer(events, event.descriptor)
        os.close(event.descriptor)
