"""One swap file: whole (one with holes cannot be swapped on), private, and with its header before it has its name."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import uuid

from libdsec.protocol.errors import AlreadyExistsError, CapacityError, InvalidArgumentError, UnsupportedOperationError

from .. import syscalls
from ..btrfs import is_btrfs
from ..syscalls import KernelError, from_os_error
from . import areas

PRIORITY = 10
_SET_FLAGS, _NO_COPY_ON_WRITE = 0x40086602, 0x00800000
_MARGIN = 64 * 1024 * 1024
"""Left free on the file system."""


def check_path(path: str, size: int) -> None:
    """Refuse what cannot become a swap file, before anything is written.

    :raises InvalidArgumentError: not an absolute path in a directory that is there.
    :raises AlreadyExistsError: something is there.
    :raises CapacityError: the file system has not that much room.
    """
    directory = os.path.dirname(path)
    if not os.path.isabs(path) or not os.path.isdir(directory):
        raise InvalidArgumentError(
            f"cannot make a swap file at {path!r}: it must be an absolute path in a directory that exists", field="path"
        )
    if os.path.lexists(path):
        raise AlreadyExistsError(
            f"cannot make a swap file at {path}: something is there already; choose another path", path=path
        )
    room = os.statvfs(directory)
    free = room.f_bavail * room.f_frsize
    if free < size + _MARGIN:
        mib = 1024 * 1024
        raise CapacityError(
            f"cannot make a swap file of {size // mib} MiB in {directory}: {free // mib} MiB are free there",
            path=path,
            free_bytes=free,
        )


def make(path: str, size: int, identity: uuid.UUID) -> None:
    """Write it and swap on it. The caller removes it when this fails.

    :raises UnsupportedOperationError: nothing can be swapped on this file system.
    """
    unfinished = _unfinished(path, identity)
    try:
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if is_btrfs(os.path.dirname(path)):
                fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("=l", _NO_COPY_ON_WRITE))
            os.posix_fallocate(descriptor, 0, size)
            os.pwrite(descriptor, areas.header(size, identity), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # fails when the name was taken meanwhile, as a rename would not
        os.link(unfinished, path)
        os.unlink(unfinished)
    except OSError as error:
        raise from_os_error(error, "make swap file", path) from None
    use(path)


def use(path: str) -> None:
    """Swap on a file that has its header.

    :raises UnsupportedOperationError: nothing can be swapped on this file system.
    """
    try:
        syscalls.swapon(path, PRIORITY)
    except KernelError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        raise UnsupportedOperationError(
            f"cannot swap on {path}: its file system cannot hold a swap file; "
            "put it on ext4, xfs or btrfs, not in memory, on an overlay or on the network",
            path=path,
        ) from error


def remove(path: str, identity: uuid.UUID) -> None:
    """Swap on it no more and remove it, if it is ours.

    :raises CapacityError: what is in it does not fit into memory.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_unfinished(path, identity))
    if areas.identity_of(path) != identity:
        return
    areas.leave(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _unfinished(path: str, identity: uuid.UUID) -> str:
    return f"{path}.{identity.hex}"
