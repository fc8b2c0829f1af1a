"""Who a process is: a pid together with its start time, and pidfds, which name one process for good."""

from __future__ import annotations

import os
import select
import signal

from .syscalls import from_os_error


def start_time(pid: int) -> int:
    """Clock ticks from boot to the start of the process; with the pid it identifies the process.

    :raises KernelError: ESRCH or ENOENT when there is no such process.
    """
    path = f"/proc/{pid}/stat"
    try:
        with open(path, "rb") as file:
            stat = file.read(4096)
    except OSError as error:
        raise from_os_error(error, "read", path) from None
    # the second field is the program's name in parentheses and may hold anything, a ')' too
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


def is_alive(pid: int, started: int) -> bool:
    """Whether this very process is there; a zombie no longer is."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = (stat := file.read(4096))[stat.rindex(b")") + 2 :].split()
    except OSError:
        return False
    return int(fields[19]) == started and fields[0] not in (b"Z", b"X")


def pidfd_open(pid: int) -> int:
    """:raises KernelError: no such process (ESRCH)."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        raise from_os_error(error, "pidfd_open", str(pid)) from None


def pidfd_send_signal(pidfd: int, number: int) -> None:
    """:raises KernelError: the process is gone (ESRCH)."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError as error:
        raise from_os_error(error, "pidfd_send_signal", f"descriptor {pidfd}") from None


def pidfd_wait(pidfd: int, timeout_s: float) -> bool:
    """Whether the process ended in time. Works for processes that are not our children."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0, round(timeout_s * 1000))))
