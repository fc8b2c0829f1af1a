"""Memory that no end of a process gives back (kind 25).

With the whole limit in System V IPC, in /dev/shm or in the output that PID 1 collects, the kernel had nothing left to
kill but PID 1: the sandbox was lost, or spun where PID 1 is out of the OOM killer's reach.
"""

from __future__ import annotations

import concurrent.futures

import pytest
from inside import Create, python

from libdsec.sync import OutputLimit, Sandbox

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap")

MIB = 1 << 20

SEGMENTS = """
libc.shmat.restype = ctypes.c_void_p
while (number := libc.shmget(0, 4 << 20, 0o1600)) >= 0:
    address = libc.shmat(number, None, 0)
    ctypes.memset(address, 1, 4 << 20)
    libc.shmdt(ctypes.c_void_p(address))
"""

QUEUES = """
message = ctypes.create_string_buffer(b"\\1" + bytes(7))
while (number := libc.msgget(0, 0o1600)) >= 0:
    while libc.msgsnd(number, message, 0, 0o4000) == 0:
        pass
"""

SEMAPHORES = """
while libc.semget(0, 32000, 0o1600) >= 0:
    pass
while libc.semget(0, 1, 0o1600) >= 0:
    pass
"""


def lives(sandbox: Sandbox) -> bool:
    """Whether there is room for a program that needs some memory."""
    return python(sandbox, "bytes(4 << 20)").ok and sandbox.files.stat("/").type == "directory"


@pytest.mark.parametrize("fill", [SEGMENTS, QUEUES, SEMAPHORES], ids=["segments", "queues", "semaphores"])
def test_ipc_is_full_before_the_memory_is(create: Create, fill: str) -> None:
    sandbox = create(memory_limit_mb=64)
    done = python(sandbox, fill)
    assert (done.exit_code, done.oom_kills) == (0, 0), done
    assert lives(sandbox)


def test_all_of_it_together_leaves_room(create: Create) -> None:
    sandbox = create(memory_limit_mb=64)
    for fill in (SEGMENTS, QUEUES, SEMAPHORES):
        assert python(sandbox, fill).ok
    sandbox.run_shell("cat /dev/zero >/dev/shm/full; cat /dev/zero >/dev/full-too")
    assert lives(sandbox)


def test_collected_output_leaves_room(create: Create) -> None:
    sandbox = create(memory_limit_mb=32)
    limit = OutputLimit(3 * MIB, 3 * MIB)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        flood = ["head", "-c", str(20 * MIB), "/dev/zero"]
        done = [run.result() for run in [pool.submit(sandbox.run, flood, timeout=60, limit=limit) for _ in range(8)]]
    for result in done:
        assert (result.ended, result.stdout_total, result.truncated) == ("exited", 20 * MIB, True)
    assert max(len(result.stdout_bytes) for result in done) > 0
    assert lives(sandbox)


def test_collected_output_of_a_session_leaves_room(create: Create) -> None:
    sandbox = create(memory_limit_mb=32)
    with sandbox.session() as session:
        result = session.run("head -c 30000000 /dev/zero", limit=OutputLimit(4 * MIB, 4 * MIB))
        assert (result.stdout_total, result.truncated) == (30_000_000, True)
    assert lives(sandbox)
