"""Freezing on the real hierarchies of this host: the v1 freezer where it is mounted, and cgroup v2."""

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsec.linux.cgroups import Cgroup, CgroupLimits, CgroupPool, Hierarchies, Hierarchy

pytestmark = pytest.mark.needs("root")

ECHO = "while read -r line; do echo $line; done"


def freezers() -> list[Hierarchy]:
    """One of each version."""
    found = [h for h in Hierarchies.detect().all if "freezer" in h.controllers]
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line and all(h.version == 1 for h in found):
            found.append(Hierarchy(line.split()[4], 2, ("freezer",)))
    return found


@pytest.fixture(params=[1, 2])
def hierarchies(request: pytest.FixtureRequest) -> Hierarchies:
    here = [h for h in freezers() if h.version == request.param]
    if not here:
        pytest.skip(f"no freezer of version {request.param} here")
    return Hierarchies((here[0],))


@pytest.fixture
def name(hierarchies: Hierarchies) -> Iterator[str]:
    name = f"dsec-test{secrets.token_hex(4)}"
    yield name
    root = Path(hierarchies.all[0].path, name)
    left = root.exists()
    for directory, _, _ in os.walk(root, topdown=False):
        os.rmdir(directory)
    assert not left


@pytest.fixture
def pool(hierarchies: Hierarchies, name: str) -> Iterator[CgroupPool]:
    pool = CgroupPool(name, hierarchies)
    yield pool
    assert pool.close()


@contextmanager
def echo_in(group: Cgroup) -> Iterator[subprocess.Popen[str]]:
    """A process of the group that gives back each line it gets."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["sh", "-c", ECHO], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            for path in group.paths:
                Path(path, "cgroup.procs").write_text(str(process.pid))
            yield process
        finally:
            process.kill()
            if os.path.isdir(group.paths[0]):
                group.thaw()


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hears(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_frozen_it_does_nothing_and_thawed_it_goes_on(pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits())
    with echo_in(group) as process:
        for turn in range(20):
            say(process, f"before {turn}")
            assert hears(process) == f"before {turn}"
            group.freeze(5)
            assert group.frozen()
            say(process, f"meanwhile {turn}")
            # a frozen process sleeps, whatever there is to do
            assert Path(f"/proc/{process.pid}/stat").read_text().split()[2] in "DS"
            group.thaw()
            assert not group.frozen()
            assert hears(process) == f"meanwhile {turn}"
    process.wait(10)
    assert pool.release(group)


def test_freezing_and_thawing_twice_is_the_same_as_once(pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits())
    group.thaw()
    group.freeze(5)
    group.freeze(5)
    assert group.frozen()
    group.thaw()
    group.thaw()
    assert not group.frozen()
    assert pool.release(group)


def test_one_given_back_frozen_is_thawed_so_that_what_was_killed_ends(pool: CgroupPool) -> None:
    group = pool.acquire(CgroupLimits())
    with echo_in(group) as process:
        group.freeze(5)
        process.kill()
        pool.release(group)
        assert process.wait(10) == -9
    again = pool.acquire(CgroupLimits())
    assert not again.frozen()
    assert pool.release(again)


def test_what_a_crash_left_frozen_is_adopted_frozen_or_ended(name: str, hierarchies: Hierarchies) -> None:
    before = CgroupPool(name, hierarchies)
    kept, lost = before.acquire(CgroupLimits()), before.acquire(CgroupLimits())
    with echo_in(kept) as running, echo_in(lost) as orphan:
        kept.freeze(5)
        lost.freeze(5)
        after = CgroupPool(name, hierarchies)
        adopted = after.adopt(kept.name)
        assert after.sweep() == 1
        assert orphan.wait(10) == -9
        assert adopted.frozen()
        say(running, "still here")
        adopted.thaw()
        assert hears(running) == "still here"
        adopted.freeze(5)
        running.kill()
        after.release(adopted)
        assert running.wait(10) == -9
    assert after.close()
