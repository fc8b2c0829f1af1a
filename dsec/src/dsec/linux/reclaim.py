"""Giving a group's memory back while it is frozen, and getting it ready again.

v2: `memory.reclaim`, in steps, until it yields no more (before Linux 5.19 there is none: paging out has to do). Swap is
allowed meanwhile (`memory.swap.max`); what was swapped out stays out when the bound is put back.

v1: first `process_madvise(MADV_PAGEOUT)` over the mappings of every process, which is quick and can stop at any step.
It leaves what no process maps (files that were read or written, tmpfs), what a disk takes its time to write, which
stays in the swap cache until it is looked at again, and what a process has beyond its first thousands of mappings.
`memory.force_empty` then finds all of that; on live groups it is reclaim with swap allowed. It is one write which may
wait for the disk, so a child makes it, who can be killed.

Nothing here needs the group to be frozen, but what runs takes its memory back while it is taken away. Where there is no
swap only file pages come back: nothing fails, and the answer says so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import advice
from .advice import PAGEOUT, WILLNEED, Range
from .cgroups import Cgroup, files
from .syscalls import KernelError, from_os_error

_STEP = 32 * 1024 * 1024
"""Reclaimed at once: what a deadline may be overrun by."""
_MOST_STEPS = 1024
"""For one process, beside one for every so many mappings."""
_PREFETCH_STEP = 2 * 1024 * 1024
_LITTLE = 256 * 1024
"""A step that yields less is fruitless."""
_FRUITLESS = 2
"""So many fruitless steps in a row have found all there is."""
_PINNED = 128
"""Processes that are held by descriptors at once: one group must not take all that there are."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_NEVER = threading.Event()


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What was there before and after, in bytes."""

    charged_before: int = 0
    """Charged to the group, page cache and tmpfs included."""
    charged_after: int = 0
    resident_before: int = 0
    """Of its processes; a page that two of them share counts twice."""
    resident_after: int = 0
    duration_s: float = 0.0
    complete: bool = False
    """All was tried; False when the time was over first."""

    @property
    def bytes(self) -> int:
        """No longer charged. What zram keeps of it, compressed, is charged to nobody."""
        return max(0, self.charged_before - self.charged_after)


def reclaim(cgroup: Cgroup, deadline_s: float, stop: threading.Event = _NEVER) -> Reclaimed:
    """Give back as much as can be had in that time, or until `stop` is set. Processes that end meanwhile are fine.

    :raises KernelError: the kernel refused; what was reclaimed until then stays so.
    """
    began = time.monotonic()
    limit = _Limit(began + deadline_s, stop)
    charged, resident = cgroup.memory_usage(), resident_bytes(cgroup)
    if cgroup.memory is None:
        complete = _page_out(cgroup, limit)
    elif cgroup.version == 2 and os.path.exists(f"{cgroup.memory}/memory.reclaim"):
        complete = _with_swap(cgroup, limit)
    elif cgroup.version == 2:
        complete = _page_out(cgroup, limit)
    else:
        complete = _page_out(cgroup, limit) and _exhaust(cgroup, limit, lambda path: _force_empty(path, limit))
    return Reclaimed(
        charged, cgroup.memory_usage(), resident, resident_bytes(cgroup), time.monotonic() - began, complete
    )


def prefetch(cgroup: Cgroup, deadline_s: float) -> int:
    """Have what was paged out read again, without waiting for its processes to need it; the bytes asked for.

    Small mappings come first: stacks, heaps and the data of libraries are what every process needs to do anything.
    Where swap is a disk the reading goes on behind our back; zram is unpacked before this returns: hence the
    deadline. Files are left out: what we have read of them would be charged to us, not to the group.
    """
    limit, asked = _Limit(time.monotonic() + deadline_s, _NEVER), 0
    with _opened(cgroup, sorted(cgroup.processes())[:_PINNED]) as processes:
        wanted: list[tuple[int, int, int]] = []
        for pid, pidfd in processes.items():
            if limit.reached():
                break
            wanted += [(length, start, pidfd) for start, length in advice.mappings(pid, anonymous=True)]
        for length, start, pidfd in sorted(wanted):
            for piece in _batches([(start, length)], _PREFETCH_STEP):
                if limit.reached():
                    return asked
                asked += advice.advise(pidfd, piece, WILLNEED)
    return asked


def resident_bytes(cgroup: Cgroup) -> int:
    """Of all its processes."""
    pages = 0
    for pid in cgroup.processes():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
            pages += int(file.read().split()[1])
    return pages * _PAGE


class _Limit:
    """Until when, and whether somebody wants an end."""

    def __init__(self, end: float, stop: threading.Event) -> None:
        self._end, self._stop = end, stop

    def reached(self) -> bool:
        return self._stop.is_set() or time.monotonic() >= self._end

    def wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it ended before the limit."""
        while not self.reached():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(0.05, max(0.001, self._end - time.monotonic())))
                return True
        return False


@contextlib.contextmanager
def _opened(cgroup: Cgroup, pids: list[int]) -> Iterator[dict[int, int]]:
    """Pid → pidfd of those of the group's processes that are there still, and for which there are descriptors."""
    with contextlib.ExitStack() as stack:
        opened = {}
        for pid in pids:
            with contextlib.suppress(OSError):
                opened[pid] = os.pidfd_open(pid)
                stack.callback(os.close, opened[pid])
        # a pid may have been given to a stranger before it was pinned by the descriptor
        members = cgroup.processes()
        yield {pid: pidfd for pid, pidfd in opened.items() if pid in members}


def _page_out(cgroup: Cgroup, limit: _Limit) -> bool:
    pids = sorted(cgroup.processes())
    return all(_page_out_some(cgroup, pids[at : at + _PINNED], limit) for at in range(0, len(pids), _PINNED))


def _page_out_some(cgroup: Cgroup, pids: list[int], limit: _Limit) -> bool:
    with _opened(cgroup, pids) as processes:
        for pid, pidfd in processes.items():
            if limit.reached():
                return False
            mapped = advice.mappings(pid)
            # address space costs nothing: whoever maps a hundred terabytes must not make as many steps of it
            step = max(_STEP, sum(length for _, length in mapped) // _MOST_STEPS)
            for batch in _batches(mapped, step):
                if limit.reached():
                    return False
                advice.advise(pidfd, batch, PAGEOUT)
    return True


def _batches(ranges: list[Range], step: int) -> Iterator[list[Range]]:
    """Of `step` bytes at most each, large ranges in pieces."""
    batch: list[Range] = []
    room = step
    for start, length in ranges:
        while length:
            piece = min(length, room)
            batch.append((start, piece))
            start, length, room = start + piece, length - piece, room - piece
            if room == 0 or len(batch) == advice.MOST_RANGES:
                yield batch
                batch, room = [], step
    if batch:
        yield batch


def _exhaust(cgroup: Cgroup, limit: _Limit, step: Callable[[str], None]) -> bool:
    """Take steps until they yield no more. One alone that yields nothing means little: the kernel gives up while a disk
    is busy with what it was given before."""
    fruitless = 0
    while not limit.reached():
        charged = cgroup.memory_usage()
        # reclaim decides by counters that the kernel lets lag for seconds, unless somebody reads them
        files.read(cgroup.memory or "", "memory.stat")
        step(cgroup.memory or "")
        fruitless = fruitless + 1 if charged - cgroup.memory_usage() < _LITTLE else 0
        if fruitless == _FRUITLESS:
            return True
    return False


def _force_empty(path: str, limit: _Limit) -> None:
    file = f"{path}/memory.force_empty"
    try:
        child = subprocess.Popen(
            ["/bin/sh", "-c", 'echo 0 >"$0"', file],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise from_os_error(error, "run", "/bin/sh", f"to write {file}") from None
    with child:
        if not limit.wait(child):
            child.kill()
            return
        said = child.stderr.read(500).decode(errors="replace").strip() if child.stderr else ""
    if child.returncode != 0:
        raise KernelError(errno.EIO, "write", file, said)


def _with_swap(cgroup: Cgroup, limit: _Limit) -> bool:
    """v2: without the group's bound on swap for as long as it takes."""
    path = cgroup.memory or ""
    bound = files.read(path, "memory.swap.max").strip() if os.path.exists(f"{path}/memory.swap.max") else "max"
    if bound != "max":
        files.write(path, "memory.swap.max", "max")
    try:
        return _exhaust(cgroup, limit, _step_v2)
    finally:
        if bound != "max":
            files.write(path, "memory.swap.max", bound)


def _step_v2(path: str) -> None:
    try:
        files.write(path, "memory.reclaim", str(_STEP))
    except KernelError as error:
        if error.errno != errno.EAGAIN:  # there was less to be had than that
            raise
