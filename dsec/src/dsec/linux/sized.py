"""A file system of its own size: ext4 in a sparse file, on a loop device.

It has no journal, since a sandbox's files do not outlive the machine's crash. Its tables are written when they are
first needed, so that the file starts with a few hundred KB on the disk.
"""

from __future__ import annotations

import errno
import os
import subprocess

from libdsec.protocol.errors import InvalidArgumentError, UnsupportedOperationError

from . import mounts, syscalls
from .loops import open_loop
from .syscalls import KernelError, from_os_error

MIN_BYTES = 4 * 1024 * 1024
MIN_INODES = 16
_RESERVED_INODES = 12
"""ext4 keeps the first ten to itself, the root among them; the upper and work directories come on top."""
_INODES_ONLY_BYTES = 64 * 1024**3
"""Size of the file system when only inodes are bounded, unless the disk is smaller."""
_BLOCK = 4096
_GROUP_BYTES = 128 * 1024 * 1024
"""Of a block group, the largest there is with such blocks. Inodes come in sixteens a group."""

_INODE_STEP = 16
_INODE_BYTES = 256
_MOST_INODES_A_GROUP = 8 * _BLOCK
"""One block holds the map of a group's inodes."""

_MKFS = "mkfs.ext4"
_MKFS_TIMEOUT_S = 60
_MKFS_OPTIONS = "lazy_itable_init=1,nodiscard,assume_storage_prezeroed=1"
_ATTRIBUTES = syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NOATIME


def make_sized(image: str, mount_point: str, size: int | None, inodes: int | None) -> None:
    """Make the file and mount its file system at a new directory. On failure the caller removes both."""
    if size is not None and size < MIN_BYTES:
        raise InvalidArgumentError(
            f"cannot bound the disk at {size} bytes: the least is {MIN_BYTES}", field="disk_bytes", value=size
        )
    if inodes is not None and inodes < MIN_INODES:
        raise InvalidArgumentError(
            f"cannot bound the disk at {inodes} inodes: the least is {MIN_INODES}", field="disk_inodes", value=inodes
        )
    size = _size_for(image, inodes or MIN_INODES) if size is None else _checked_size(image, size)
    if inodes is not None:
        inodes = _whole_inodes(size, inodes)
    _make_image(image, size, inodes)
    os.mkdir(mount_point, 0o700)
    loop, device = open_loop(image, read_only=False)
    try:
        mount = mounts.mount_detached("ext4", [("source", device)], [], _ATTRIBUTES, f"{image} ({device})")
    finally:
        os.close(loop)
    try:
        mounts.attach(mount, mount_point)
    finally:
        os.close(mount)
    os.rmdir(os.path.join(mount_point, "lost+found"))


def _checked_size(image: str, size: int) -> int:
    """Sizes may overcommit the disk together; one that is larger than the disk bounds nothing."""
    disk = os.statvfs(os.path.dirname(image))
    whole = disk.f_blocks * disk.f_frsize
    if size > whole:
        raise InvalidArgumentError(
            f"cannot bound the disk at {size} bytes: the disk itself has {whole}", field="disk_bytes", value=size
        )
    return size


def _size_for(image: str, inodes: int) -> int:
    """Of a file system that bounds inodes alone: large, but of few enough groups for them to be spread well."""
    disk = os.statvfs(os.path.dirname(image))
    groups = max(1, inodes // (8 * _INODE_STEP))
    return min(_INODES_ONLY_BYTES, disk.f_bavail * disk.f_frsize, groups * _GROUP_BYTES)


def _whole_inodes(size: int, inodes: int) -> int:
    """The number that mkfs can make exactly and that is not above what was asked for."""
    groups = -(-size // _GROUP_BYTES)
    most = min(groups * _MOST_INODES_A_GROUP, size // (2 * _INODE_BYTES)) - _RESERVED_INODES
    if inodes > most:
        raise InvalidArgumentError(
            f"cannot bound the disk at {inodes} inodes: a file system of {size} bytes has at most {most}",
            field="disk_inodes",
            value=inodes,
        )
    each = (inodes + _RESERVED_INODES) // groups // _INODE_STEP * _INODE_STEP
    if each == 0:
        raise InvalidArgumentError(
            f"cannot bound the disk at {inodes} inodes and {size} bytes: so large a file system has at least "
            f"{groups * _INODE_STEP} inodes",
            field="disk_inodes",
            value=inodes,
        )
    return each * groups


def _make_image(image: str, size: int, inodes: int | None) -> None:
    try:
        descriptor = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, size // _BLOCK * _BLOCK)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise from_os_error(error, "make", image) from None
    command = [_MKFS, "-q", "-F", "-m", "0", "-b", str(_BLOCK), "-O", "^has_journal,^resize_inode"]
    command += ["-E", _MKFS_OPTIONS]
    if inodes is not None:
        command += ["-N", str(inodes)]
    try:
        done = subprocess.run(
            [*command, image],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_MKFS_TIMEOUT_S,
            env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"},
        )
    except FileNotFoundError:
        raise UnsupportedOperationError(
            "cannot bound the disk: mkfs.ext4 is not installed; install e2fsprogs", limit="disk"
        ) from None
    except subprocess.TimeoutExpired:
        raise KernelError(
            errno.ETIMEDOUT, "make ext4 in", image, f"mkfs.ext4 took longer than {_MKFS_TIMEOUT_S} s"
        ) from None
    if done.returncode != 0:
        text = done.stderr[-500:].decode("utf-8", "replace").strip()
        raise KernelError(errno.EIO, "make ext4 in", image, f"mkfs.ext4 ended with {done.returncode}: {text}")
