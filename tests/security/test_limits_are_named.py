"""Who ran out of what (kind 25): only that job ends, the answer names the bound, neighbours do not notice."""

from __future__ import annotations

import time

import pytest
from inside import Create, python

from libdsec.errors import CommandNotStartedError, FileOperationError
from libdsec.protocol.exec import ExecResult
from libdsec.sync import Sandbox

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap")

BOMB = """
while True:
    try:
        if os.fork() == 0 and LEAVE:
            os.setsid()
    except OSError:
        pass
"""


def test_four_times_the_memory_in_one_go(create: Create) -> None:
    sandbox, neighbour = create(memory_limit_mb=64), create(memory_limit_mb=64)
    result = python(sandbox, "block = bytearray(256 << 20); block[::4096] = bytes(len(block) // 4096)")
    assert (result.ended, result.signal, result.out_of_memory) == ("signaled", 9, True)
    result = sandbox.run(["true"])
    assert (result.ok, result.oom_kills) == (True, 0)
    assert neighbour.run(["true"]).ok


def test_memory_used_up_by_many_processes(create: Create) -> None:
    sandbox = create(memory_limit_mb=64)
    result = python(sandbox, "for _ in range(3): os.fork()\nblock = bytearray(b'x' * (24 << 20)); os.wait()")
    assert result.oom_kills > 0
    assert sandbox.run(["true"]).ok


def test_written_files_are_no_reason_to_kill(create: Create) -> None:
    sandbox = create(memory_limit_mb=64)
    result = sandbox.run_shell("head -c 200000000 /dev/zero >/big && rm /big")
    assert (result.exit_code, result.oom_kills) == (0, 0), result


@pytest.mark.parametrize("leave", [False, True], ids=["one-session", "many-sessions"])
def test_a_fork_bomb_ends_with_its_time(create: Create, leave: bool) -> None:
    sandbox, neighbour = create(pids_limit=128), create()
    result = python(sandbox, f"LEAVE = {leave}{BOMB}", timeout=1)
    assert (result.ended, result.pids_refused > 0) == ("timed_out", True)
    assert sandbox.run_shell("ls -d /proc/[0-9]* | wc -l").stdout.strip() in ("3", "4")
    assert neighbour.run(["true"]).ok


def test_a_full_limit_of_processes_is_named(create: Create) -> None:
    sandbox = create(pids_limit=32)
    fill = "libc.signal(17, ctypes.c_void_p(1))\nwhile True:\n  try:\n    os.fork() or sys.exit(libc.pause())\n"
    fill += "  except OSError:\n    pass\n"
    with sandbox.exec_stream(["python3", "-c", f"import ctypes, os, sys\nlibc = ctypes.CDLL(None)\n{fill}"]) as bomb:
        for _ in range(1000):
            try:
                sandbox.run(["true"])
            except CommandNotStartedError as error:
                refusal = error
                break
        else:
            pytest.fail("the limit was never reached")
        assert refusal.details["resource"] == "pids"
        assert "as many processes as its limit allows" in str(refusal)
        bomb.kill()
    assert run_once_there_is_room(sandbox).ok


def run_once_there_is_room(sandbox: Sandbox) -> ExecResult:
    """What was killed counts until it is reaped, which may take a moment."""
    for _ in range(200):
        try:
            return sandbox.run(["true"])
        except CommandNotStartedError:
            time.sleep(0.05)
    return sandbox.run(["true"])


def test_a_full_disk_is_named_and_can_be_emptied(create: Create) -> None:
    sandbox = create(disk_limit_mb=32)
    assert "No space left" in sandbox.run_shell("head -c 100000000 /dev/zero >/big").stderr
    with pytest.raises(FileOperationError, match="no space left"):
        sandbox.files.write("/more", bytes(1 << 20))
    assert sandbox.run(["true"]).ok
    sandbox.files.remove("/big")
    sandbox.files.write("/more", bytes(1 << 20))


def test_no_process_is_out_of_reach_of_the_oom_killer(sandbox: Sandbox) -> None:
    result = sandbox.run_shell(
        "echo -1000 >/proc/self/oom_score_adj; echo -17 >/proc/self/oom_adj; cat /proc/self/oom_score_adj"
    )
    assert int(result.stdout) >= 0
