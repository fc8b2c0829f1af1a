"""Loop devices that free themselves: made with autoclear, so that the last close or unmount gives them back.

A crash can therefore leak none: the kernel closes the descriptor, and a mount's end does the rest.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from .syscalls import KernelError, from_os_error

_CONTROL = "/dev/loop-control"
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_READ_ONLY, _AUTOCLEAR = 1, 4
_ATTEMPTS = 64
"""Other processes take loop devices too; between finding a free one and configuring it, it may be gone."""


def _configuration(backing: int, flags: int) -> bytes:
    """struct loop_config with its loop_info64."""
    info = struct.pack("=5Q4I64s64s32s2Q", 0, 0, 0, 0, 0, 0, 0, 0, flags, b"", b"", b"", 0, 0)
    return struct.pack("=II", backing, 0) + info + bytes(64)


def open_loop(path: str, read_only: bool = True) -> tuple[int, str]:
    """A loop device over a file: its descriptor and its path.

    The device exists until the descriptor and every mount of it are gone.
    """
    try:
        backing = os.open(path, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC)
    except OSError as error:
        raise from_os_error(error, "open", path) from None
    try:
        return _configure(backing, path, read_only)
    finally:
        os.close(backing)


def _configure(backing: int, path: str, read_only: bool) -> tuple[int, str]:
    configuration = _configuration(backing, _AUTOCLEAR | (_READ_ONLY if read_only else 0))
    for _ in range(_ATTEMPTS):
        device = f"/dev/loop{_free_number()}"
        try:
            loop = os.open(device, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC)
        except OSError as error:
            raise from_os_error(error, "open", device, f"for {path}") from None
        try:
            fcntl.ioctl(loop, _LOOP_CONFIGURE, configuration)
        except OSError as error:
            os.close(loop)
            if error.errno == errno.EBUSY:
                continue
            raise from_os_error(error, "LOOP_CONFIGURE", device, f"over {path}") from None
        return loop, device
    raise KernelError(errno.EBUSY, "LOOP_CONFIGURE", path, f"{_ATTEMPTS} loop devices were taken by others")


def _free_number() -> int:
    try:
        control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise from_os_error(error, "open", _CONTROL, "loop devices are not available") from None
    try:
        return fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
    except OSError as error:
        raise from_os_error(error, "LOOP_CTL_GET_FREE", _CONTROL) from None
    finally:
        os.close(control)
