"""Who a process is."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from dsec.linux import KernelError
from dsec.linux.processes import is_alive, pidfd_open, pidfd_send_signal, pidfd_wait, start_time


def test_a_process_is_its_pid_and_its_start_time() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        started = start_time(process.pid)
        assert started == start_time(process.pid)
        assert is_alive(process.pid, started)
        assert not is_alive(process.pid, started + 1)
        process.kill()
    assert not is_alive(process.pid, started)
    with pytest.raises(KernelError, match="/proc/"):
        start_time(process.pid)


def test_a_name_cannot_pretend_another_start_time(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 1 1"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "60"]) as process:
        assert start_time(process.pid) >= start_time(os.getpid())
        process.kill()


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen(["sleep", "60"])
    started = start_time(process.pid)
    pidfd = pidfd_open(process.pid)
    try:
        assert not pidfd_wait(pidfd, 0)
        pidfd_send_signal(pidfd, signal.SIGKILL)
        assert pidfd_wait(pidfd, 10)
        assert not is_alive(process.pid, started)
        process.wait()
        with pytest.raises(KernelError, match="pidfd_send_signal"):
            pidfd_send_signal(pidfd, signal.SIGTERM)
    finally:
        os.close(pidfd)
