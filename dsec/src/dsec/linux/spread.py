"""Keeping short-lived directories apart on ext4.

ext4 does not use an inode again for a minute or more after it was deleted: each creation steps over those deleted
lately in its block group, one by one. Where directories come and go all the time in one parent, that is thousands. A
parent marked as the top of unrelated trees has its children put into block groups of their own, so that each steps
over its own few. Measured over 500 cycles of three directories made and six removed: 1.5–2.0 ms a cycle to make them,
0.1 ms with the mark.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from .syscalls import from_os_error

_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS = 0x80086601, 0x40086602
_TOP_OF_TREES = 0x0002_0000
"""EXT4_TOPDIR_FL, the T of chattr."""

_NOT_KNOWN = {errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM}
"""What file systems without the mark answer."""


def spread_children(directory: str) -> bool:
    """Mark a directory. False where its file system has no such mark, which is fine.

    :raises KernelError: the directory cannot be opened.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise from_os_error(error, "open", directory) from None
    try:
        flags = bytearray(8)
        fcntl.ioctl(descriptor, _FS_IOC_GETFLAGS, flags)
        (value,) = struct.unpack("=I4x", flags)
        if not value & _TOP_OF_TREES:
            fcntl.ioctl(descriptor, _FS_IOC_SETFLAGS, struct.pack("=I4x", value | _TOP_OF_TREES))
    except OSError as error:
        if error.errno in _NOT_KNOWN:
            return False
        raise from_os_error(error, "ioctl FS_IOC_SETFLAGS", directory) from None
    finally:
        os.close(descriptor)
    return True
