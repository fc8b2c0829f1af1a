"""System calls that Python 3.11 does not offer, by ctypes, and the error they end in."""

from __future__ import annotations

import ctypes
import errno as errnos
import os
import struct
from collections.abc import Sequence

# one table for all architectures since Linux 5.1
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 442
_PROCESS_MADVISE = 440

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 4
FSOPEN_CLOEXEC = FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_FLAG, FSCONFIG_SET_STRING, FSCONFIG_SET_FD, FSCONFIG_CMD_CREATE = 0, 1, 5, 6
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOATIME = 1, 2, 4, 0x10
MOUNT_ATTR_IDMAP = 0x100000
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
_SWAP_FLAG_PREFER = 0x8000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18

_SYNC_FILE_RANGE_WRITE = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class KernelError(OSError):
    """A system call said no. `syscall` and `target` say which and on what; `errno` as usual."""

    def __init__(self, number: int, syscall: str, target: str, detail: str = "") -> None:
        super().__init__(number, os.strerror(number))
        self.syscall = syscall
        self.target = target
        self.detail = detail

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        name = errnos.errorcode.get(self.errno or 0, str(self.errno))
        return f"cannot {self.syscall} {self.target}: {self.strerror} [{name}]{detail}"


def from_os_error(error: OSError, syscall: str, target: str, detail: str = "") -> KernelError:
    """What Python raised, as a `KernelError`."""
    return KernelError(error.errno or errnos.EIO, syscall, target, detail)


def _call(name: str, target: str, number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise KernelError(ctypes.get_errno(), name, target)
    return result


def _text(value: str | None) -> ctypes.c_char_p:
    return ctypes.c_char_p(None if value is None else os.fsencode(value))


def _int(value: int) -> ctypes.c_long:
    return ctypes.c_long(value)


def fsopen(filesystem: str) -> int:
    """A file system context."""
    return _call("fsopen", filesystem, _FSOPEN, _text(filesystem), _int(FSOPEN_CLOEXEC))


def fsconfig(context: int, command: int, key: str | None, value: str | None, auxiliary: int, target: str) -> None:
    """One step of configuring a context; the error carries what the kernel wrote into the context's log."""
    name = "fsconfig create for" if key is None else f"fsconfig {key} for"
    try:
        _call(name, target, _FSCONFIG, _int(context), _int(command), _text(key), _text(value), _int(auxiliary))
    except KernelError as error:
        error.detail = context_log(context)
        raise


def context_log(context: int) -> str:
    """What the kernel has to say about a context, in one line; empty when nothing."""
    lines = []
    for _ in range(8):
        try:
            lines.append(os.read(context, 1024).decode("utf-8", "replace").strip())
        except OSError:
            break
    return "; ".join(lines)


def fsmount(context: int, attributes: int, target: str) -> int:
    """A detached mount of a created context."""
    return _call("fsmount", target, _FSMOUNT, _int(context), _int(FSMOUNT_CLOEXEC), _int(attributes))


def open_tree(path: str, flags: int = OPEN_TREE_CLONE, directory: int = AT_FDCWD) -> int:
    """A descriptor of the mount at a path, or of a detached clone of it."""
    return _call("open_tree", path, _OPEN_TREE, _int(directory), _text(path), _int(flags | OPEN_TREE_CLOEXEC))


def move_mount(mount: int, path: str) -> None:
    """Attach a detached mount to a path."""
    _call(
        "move_mount", path, _MOVE_MOUNT, _int(mount), _text(""), _int(AT_FDCWD), _text(path),
        _int(MOVE_MOUNT_F_EMPTY_PATH),
    )  # fmt: skip


def mount_setattr(mount: int, set_: int, clear: int, userns: int, target: str) -> None:
    """Change the attributes of a detached mount; `userns` is used with MOUNT_ATTR_IDMAP."""
    attributes = struct.pack("=QQQQ", set_, clear, 0, max(userns, 0))
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    _call(
        "mount_setattr", target, _MOUNT_SETATTR, _int(mount), _text(""), _int(AT_EMPTY_PATH), buffer,
        _int(len(attributes)),
    )  # fmt: skip


def umount(path: str, flags: int = UMOUNT_NOFOLLOW) -> None:
    """Detach what is mounted at a path."""
    if _libc.umount2(_text(path), ctypes.c_int(flags)) < 0:
        raise KernelError(ctypes.get_errno(), "umount", path)


def process_madvise(pidfd: int, ranges: Sequence[tuple[int, int]], advice: int) -> int:
    """Advise on (address, length) of another process, 1,024 of them at most; how many bytes were taken. Fewer than
    asked: the range after them was refused. Refused at once is an error."""
    vector = (ctypes.c_size_t * (2 * len(ranges)))(*(number for pair in ranges for number in pair))
    return _call(
        "process_madvise", f"descriptor {pidfd}", _PROCESS_MADVISE, _int(pidfd), vector, _int(len(ranges)),
        _int(advice), _int(0),
    )  # fmt: skip


def start_writing(descriptor: int, offset: int, length: int) -> None:
    """Have the kernel begin to write that part of a file to the disk. Advice: what refuses it is written later."""
    _libc.sync_file_range(
        ctypes.c_int(descriptor), ctypes.c_int64(offset), ctypes.c_int64(length), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE)
    )


def swapon(path: str, priority: int) -> None:
    """Use a swap area; areas of higher priority fill first."""
    if _libc.swapon(_text(path), ctypes.c_int(_SWAP_FLAG_PREFER | priority)) < 0:
        raise KernelError(ctypes.get_errno(), "swapon", path)


def swapoff(path: str) -> None:
    """Bring what is in a swap area back into memory, and use it no more."""
    if _libc.swapoff(_text(path)) < 0:
        raise KernelError(ctypes.get_errno(), "swapoff", path)


def unshare(flags: int) -> None:
    """Leave namespaces. Only in a child that is about to be thrown away: it concerns the calling thread."""
    if _libc.unshare(ctypes.c_int(flags)) < 0:
        raise KernelError(ctypes.get_errno(), "unshare", hex(flags))


def filesystem_magic(path: str) -> int:
    """The type number of the file system that a path lies on."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statfs(_text(path), buffer) < 0:
        raise KernelError(ctypes.get_errno(), "statfs", path)
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF


def make_mounts_private() -> None:
    """Let no mount made in this namespace show in another."""
    flags = ctypes.c_ulong(_MS_REC | _MS_PRIVATE)
    if _libc.mount(_text("none"), _text("/"), None, flags, None) < 0:
        raise KernelError(ctypes.get_errno(), "make private", "/")
