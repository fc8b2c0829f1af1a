"""Pre-content events of fanotify: the kernel asks before a range of a marked file is read or written.

The reader waits, and can be killed meanwhile, until its event is answered. An event is known to the group by the number
of its descriptor alone, which is of the process that read the event; who holds a duplicate of the group may answer too.
Closing the last duplicate lets all who wait go on, with whatever the file has.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import NamedTuple

from .syscalls import KernelError, from_os_error

_CLASS_PRE_CONTENT, _CLOEXEC, _NONBLOCK = 0x8, 0x1, 0x2
_UNLIMITED_QUEUE, _UNLIMITED_MARKS = 0x10, 0x20
_MARK_ADD, _MARK_REMOVE = 0x1, 0x2
_PRE_ACCESS = 0x0010_0000
_AT_FDCWD = -100
_ALLOW, _DENY, _ERRNO_SHIFT = 1, 2, 24
_INFO_RANGE = 6

ALL = 1 << 62
"""Bytes, of an event that tells no range."""

_EVENT = struct.Struct("=IBBHQii")
_RANGE = struct.Struct("=BBHIQQ")
_ANSWER = struct.Struct("=iI")
_ROOM = _EVENT.size + _RANGE.size
"""Of exactly one event: a read must not take two."""

_libc = ctypes.CDLL(None, use_errno=True)


class Event(NamedTuple):
    """A reader that waits. The descriptor is the receiver's: readable, writable, and of no events of its own."""

    descriptor: int
    pid: int
    offset: int
    length: int


def open_group() -> int:
    """A group for pre-content events, without bounds on queue and marks: an event that finds no room is allowed."""
    flags = _CLASS_PRE_CONTENT | _CLOEXEC | _NONBLOCK | _UNLIMITED_QUEUE | _UNLIMITED_MARKS
    events = os.O_RDWR | os.O_CLOEXEC | os.O_LARGEFILE
    group: int = _libc.fanotify_init(ctypes.c_uint(flags), ctypes.c_uint(events))
    if group < 0:
        raise KernelError(ctypes.get_errno(), "fanotify_init", "a pre-content group")
    return group


def mark(group: int, path: str) -> None:
    """Ask before ranges of the file are read, by whoever opens it from now on."""
    _mark(group, path, _MARK_ADD)


def unmark(group: int, path: str) -> None:
    """Ask no more. Events that wait must still be answered. No mark, or no file, is no error."""
    try:
        _mark(group, path, _MARK_REMOVE)
    except KernelError as error:
        if error.errno != errno.ENOENT:
            raise


def _mark(group: int, path: str, what: int) -> None:
    done = _libc.fanotify_mark(
        ctypes.c_int(group), ctypes.c_uint(what), ctypes.c_uint64(_PRE_ACCESS), ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(path)),
    )  # fmt: skip
    if done < 0:
        raise KernelError(ctypes.get_errno(), "fanotify_mark", path)


def read_event(group: int) -> Event | None:
    """The next event; None where none waits.

    :raises KernelError: it could not be had, and its reader was refused (no descriptor is left: EMFILE).
    """
    try:
        data = os.read(group, _ROOM)
    except BlockingIOError:
        return None
    except OSError as error:
        raise from_os_error(error, "read an event of", "a fanotify group") from None
    length, _, _, header, _, descriptor, pid = _EVENT.unpack_from(data)
    if length >= header + _RANGE.size:
        kind, _, _, _, offset, count = _RANGE.unpack_from(data, header)
        if kind == _INFO_RANGE:
            return Event(descriptor, pid, offset, count)
    # no range is told: it may be any, and what is answered lets the whole of it be read
    return Event(descriptor, pid, 0, ALL)


def answer(group: int, descriptor: int, refusal: int = 0) -> bool:
    """Let the reader of an event go on, or fail with an errno. False: no event of that number waits."""
    response = _DENY | refusal << _ERRNO_SHIFT if refusal else _ALLOW
    try:
        os.write(group, _ANSWER.pack(descriptor, response))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise from_os_error(error, "answer", f"event {descriptor}") from None
    return True
