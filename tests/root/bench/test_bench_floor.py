"""The C programs and the peers on a real kernel: what they measure, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.bench.native import Native, compile_native
from dsec.bench.peers import NAMES, Bwrap, Runtime, peers, peers_with_exec
from libdsec.protocol.errors import InternalError

pytestmark = pytest.mark.needs("root", "linux", "overlay", "cc")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A tree with nothing in it but a static program that prints, and an empty scratch directory."""
    source = tmp_path / "hello.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("ready"); return 0; }\n')
    for name in ("bin", "proc", "dev", "sys", "tmp", "etc"):
        (tmp_path / "lower" / name).mkdir(parents=True)
    assert os.system(f"cc -static -o {tmp_path}/lower/bin/hello {source}") == 0
    os.link(tmp_path / "lower/bin/hello", tmp_path / "lower/bin/true")
    (tmp_path / "scratch").mkdir()
    before = (Path("/proc/self/mountinfo").read_text(), _cgroups())
    yield tmp_path
    assert list((tmp_path / "scratch").iterdir()) == []
    assert (Path("/proc/self/mountinfo").read_text(), _cgroups()) == before


def _cgroups() -> list[str]:
    return [str(path) for path in Path("/sys/fs/cgroup").glob("**/*dsec-bench*")]


def native(place: Path) -> Native:
    return asyncio.run(compile_native(place, place / "lower", place / "scratch"))


def test_create_times_each_turn_to_its_output_and_to_its_end(place: Path) -> None:
    turns = asyncio.run(native(place).floor_create(5, ["/bin/hello"]))
    assert len(turns.first) == len(turns.total) == 5
    assert all(0 < first <= total for first, total in zip(turns.first, turns.total, strict=True))


def test_lifecycle_runs_its_loops(place: Path) -> None:
    turns = asyncio.run(native(place).floor_lifecycle(3, 2, ["/bin/hello"]))
    assert len(turns.total) == 6
    assert turns.elapsed_s > 0


def test_exec_enters_and_leaves(place: Path) -> None:
    assert len(asyncio.run(native(place).floor_exec(4, ["/bin/hello"])).total) == 4


def test_idle_processes_are_there_while_they_should(place: Path) -> None:
    async def idle() -> int:
        async with (await compile_native(place, place / "lower", place / "scratch")).floor_idle(3):
            return len(list((place / "scratch").iterdir()))

    assert asyncio.run(idle()) == 3


def test_a_program_that_is_not_there_is_an_error_in_words(place: Path) -> None:
    with pytest.raises(InternalError, match="cannot execute /bin/missing: No such file"):
        asyncio.run(native(place).floor_create(1, ["/bin/missing"]))
    shutil.rmtree(place / "scratch")
    (place / "scratch").mkdir()


def test_spawn_gives_each_turn_a_name_of_its_own(place: Path) -> None:
    names = place / "names"
    turns = asyncio.run(native(place).spawn(["/bin/sh", "-c", f"echo @ID@ >> {names}"], 3, 2))
    assert len(turns.total) == 6
    assert len(set(names.read_text().split())) == 6


def _below_cgroup2() -> list[str]:
    """What lies where cgroup v2 is mounted over it, on machines that have both versions."""
    show = "umount /sys/fs/cgroup/unified && ls /sys/fs/cgroup/unified || true"
    done = subprocess.run(["unshare", "-m", "/bin/sh", "-c", show], capture_output=True, text=True, timeout=60)
    return sorted(done.stdout.split())


def test_each_installed_peer_runs_and_leaves_nothing(place: Path) -> None:
    before = _below_cgroup2()

    async def run() -> dict[str, int]:
        programs = await compile_native(place, place / "lower", place / "scratch")
        done = {}
        async with peers(NAMES, place / "dsec-bench-test", place / "lower") as found:
            for name, peer in found.items():
                if isinstance(peer, Runtime | Bwrap):
                    turns = await programs.spawn(peer.run(["/bin/hello"]), 2, wrap=peer.wrap)
                    done[name] = len(turns.first)
        return done

    done = asyncio.run(run())
    assert set(done) == {name for name in ("crun", "runc", "bwrap") if shutil.which(name)}
    assert set(done.values()) <= {2}
    assert _below_cgroup2() == before


@pytest.mark.skipif(shutil.which("crun") is None, reason="needs crun")
def test_a_kept_peer_is_gone_when_the_body_fails(place: Path) -> None:
    """The tree has no `sleep`: keeping one fails after the runtime has begun."""

    async def run() -> None:
        async with peers_with_exec(place / "dsec-bench-test", place / "lower"):
            pass

    with pytest.raises(InternalError, match="--detach"):
        asyncio.run(run())
