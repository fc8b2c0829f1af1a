"""What an agent can do against being paused: none of it keeps its group from freezing, thawing or being reclaimed."""

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsec.linux.cgroups import Cgroup, CgroupLimits, CgroupPool, Hierarchies
from dsec.linux.reclaim import prefetch, reclaim

pytestmark = pytest.mark.needs("root", "cgroup-v1")

READY = "print('ready', flush=True)\n"
AGENTS = {
    "forks without end": READY + "while True:\n pid = os.fork()\n pid or os._exit(0)\n os.waitpid(pid, 0)",
    "starts a program in a child that shares its memory": READY + "while True: subprocess.run(['/bin/true'])",
    "stops itself": "pid = os.fork()\npid or os.kill(os.getpid(), signal.SIGSTOP)\n" + READY + "signal.pause()",
    "traces its child": (
        "pid = os.fork()\n"
        "if pid == 0:\n libc.ptrace(0, 0, 0, 0)\n os.kill(os.getpid(), signal.SIGSTOP)\n os._exit(0)\n"
        "os.waitpid(pid, os.WUNTRACED)\n" + READY + "signal.pause()"
    ),
    "locks its memory": (
        "held = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "libc.mlockall(3)\n" + READY + "signal.pause()"
    ),
    "maps a hundred terabytes": (
        "libc.mmap.restype = ctypes.c_void_p\n"
        "for _ in range(8):\n"
        " libc.mmap(None, ctypes.c_size_t(12 << 40), 0, 0x4022, -1, ctypes.c_long(0))\n" + READY + "signal.pause()"
    ),
    "maps page by page": (
        "libc.mmap.restype = ctypes.c_void_p\n"
        "for n in range(20000):\n"
        " libc.mmap(None, ctypes.c_size_t(4096), 1 + 2 * (n % 2), 0x22, -1, ctypes.c_long(0))\n"
        + READY + "signal.pause()"
    ),
    "catches everything": "[signal.signal(n, lambda *_: None) for n in range(1, 32) if n not in (9, 19)]\n"
    + READY + "while True: signal.pause()",
    "spins in threads": (
        "[threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start() for _ in range(4)]\n" + READY
    ),
}  # fmt: skip


@contextmanager
def agent(pool: CgroupPool, code: str) -> Iterator[Cgroup]:
    group = pool.acquire(CgroupLimits(memory_bytes=128 << 20, pids=50))
    imports = "import ctypes, mmap, os, signal, subprocess, threading\nlibc = ctypes.CDLL(None)\n"
    join = " && ".join(f"echo 0 >{path}/cgroup.procs" for path in group.paths) + ' && exec "$0" "$@"'
    command = ["sh", "-c", join, sys.executable, "-c", imports + code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield group
        finally:
            group.kill()
            while group.processes():
                process.poll()
            pool.release(group)


@pytest.fixture
def pool() -> Iterator[CgroupPool]:
    pool = CgroupPool(f"dsec-test{secrets.token_hex(4)}", Hierarchies.detect())
    yield pool
    assert pool.close()


def ticks(group: Cgroup) -> int:
    """Processor time of all its processes."""
    total = 0
    for pid in group.processes():
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total


@pytest.mark.parametrize("what", list(AGENTS))
def test_it_is_frozen_all_the_same(pool: CgroupPool, what: str) -> None:
    with agent(pool, AGENTS[what]) as group:
        for _ in range(5):
            group.freeze(5)
            members, spent = group.processes(), ticks(group)
            got = reclaim(group, 5)
            prefetch(group, 0.05)
            assert got.complete
            assert group.frozen()
            assert (group.processes(), ticks(group)) == (members, spent)
            group.thaw()
