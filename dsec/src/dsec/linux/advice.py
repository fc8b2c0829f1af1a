"""Advice on the memory of other processes: what they have mapped, and telling the kernel what to do with it.

The processes are hostile: they may lock memory, map strange things, and vanish. What cannot be advised on is passed
over; only a kernel or a container that refuses advice altogether is an error.
"""

from __future__ import annotations

import errno
import itertools

from . import syscalls
from .syscalls import KernelError

WILLNEED, PAGEOUT = 3, 21
MOST_RANGES = 1024
"""In one call."""

MOST_MAPPINGS = 4096
"""Looked at of one process; only one that means to be a burden has more."""

Range = tuple[int, int]
"""Address and length."""

_KERNELS_OWN = frozenset((b"[vvar]", b"[vvar_vclock]", b"[vdso]", b"[vsyscall]"))
_REFUSED_ALTOGETHER = frozenset((errno.EPERM, errno.ENOSYS, errno.EBADF))


def mappings(pid: int, anonymous: bool = False) -> list[Range]:
    """What a process has mapped, `MOST_MAPPINGS` at most, without the kernel's own; nothing when it is gone.
    `anonymous`: only what has no file behind it."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            lines = list(itertools.islice(file, MOST_MAPPINGS))
    except OSError:
        return []
    found = []
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].strip() in _KERNELS_OWN:
            continue
        if anonymous and fields[4] != b"0":
            continue
        start, _, end = fields[0].partition(b"-")
        found.append((int(start, 16), int(end, 16) - int(start, 16)))
    return found


def advise(pidfd: int, ranges: list[Range], advice: int) -> int:
    """Advise on ranges, passing over those that are refused; the bytes advised on. 0 when the process is gone.

    :raises KernelError: this process may not advise others at all.
    """
    left, taken = list(ranges), 0
    while left:
        try:
            done = syscalls.process_madvise(pidfd, left[:MOST_RANGES], advice)
        except KernelError as error:
            if error.errno == errno.ESRCH:
                return taken
            if error.errno in _REFUSED_ALTOGETHER:
                raise
            left = left[1:]
            continue
        taken += done
        left = _after(left, done)
    return taken


def _after(ranges: list[Range], done: int) -> list[Range]:
    """What is left when the first `done` bytes were taken."""
    for number, (start, length) in enumerate(ranges):
        if done < length:
            return [(start + done, length - done), *ranges[number + 1 :]]
        done -= length
    return []
