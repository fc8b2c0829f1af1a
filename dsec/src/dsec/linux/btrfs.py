"""btrfs subvolumes with a quota group, by ioctl."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct

from libdsec.protocol.errors import UnsupportedOperationError

from .syscalls import filesystem_magic, from_os_error

_MAGIC = 0x9123683E
_SUBVOLUME_INODE = 256
_SUBVOL_CREATE = 0x5000940E
_SNAP_DESTROY = 0x5000940F
_SNAP_CREATE = 0x50009417
_QGROUP_CREATE = 0x4010942A
_QGROUP_LIMIT = 0x8030942B
_INO_LOOKUP = 0xD0009412
_LIMIT_MAX_RFER = 1
_READ_ONLY = 1 << 1
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_btrfs(path: str) -> bool:
    """Whether the path lies on btrfs."""
    return filesystem_magic(path) == _MAGIC


def is_subvolume(path: str) -> bool:
    """Whether the path is the root of a subvolume; False when it is not there."""
    try:
        return os.stat(path, follow_symlinks=False).st_ino == _SUBVOLUME_INODE and is_btrfs(path)
    except FileNotFoundError:
        return False


def make_subvolume(path: str, limit_bytes: int) -> None:
    """A subvolume at a new path that can refer to so many bytes at most.

    :raises UnsupportedOperationError: the file system keeps no quotas; the subvolume is removed again.
    """
    _on_parent(path, _SUBVOL_CREATE, "make subvolume")
    descriptor = os.open(path, _OPEN)
    try:
        # quota group 0 stands for the subvolume's own
        fcntl.ioctl(descriptor, _QGROUP_LIMIT, struct.pack("=6Q", 0, _LIMIT_MAX_RFER, limit_bytes, 0, 0, 0))
    except OSError as error:
        remove_subvolume(path)
        if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ENOTCONN):
            raise from_os_error(error, "limit subvolume", path) from None
        raise UnsupportedOperationError(
            f"cannot bound the disk at {limit_bytes} bytes: the btrfs of the state directory keeps no quotas; "
            "switch them on with `btrfs quota enable` on its mount point",
            limit="disk",
        ) from None
    finally:
        os.close(descriptor)
    os.chmod(path, 0o700)


def snapshot_subvolume(path: str, to: str) -> None:
    """A read-only copy at a new path of the same file system, of one moment."""
    parent, name = os.path.split(to)
    try:
        source = os.open(path, _OPEN)
        try:
            arguments = bytearray(struct.pack("=qQQ32s4040s", source, 0, _READ_ONLY, b"", os.fsencode(name)))
            target = os.open(parent, _OPEN)
            try:
                fcntl.ioctl(target, _SNAP_CREATE, arguments)
            finally:
                os.close(target)
        finally:
            os.close(source)
    except OSError as error:
        raise from_os_error(error, "snapshot subvolume", path) from None


def remove_subvolume(path: str) -> None:
    """Remove a subvolume with all that is in it, and its quota group."""
    group = _subvolume_id(path)
    _on_parent(path, _SNAP_DESTROY, "remove subvolume")
    descriptor = os.open(os.path.dirname(path), _OPEN)
    try:
        # newer kernels drop the group by themselves, older ones keep it busy until the space is given back
        with contextlib.suppress(OSError):
            fcntl.ioctl(descriptor, _QGROUP_CREATE, struct.pack("=QQ", 0, group))
    finally:
        os.close(descriptor)


def _on_parent(path: str, request: int, what: str) -> None:
    parent, name = os.path.split(path)
    # a bytearray, since fcntl takes immutable arguments of 1,024 bytes at most
    arguments = bytearray(struct.pack("=q4088s", 0, os.fsencode(name)))
    try:
        descriptor = os.open(parent, _OPEN)
        try:
            fcntl.ioctl(descriptor, request, arguments)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise from_os_error(error, what, path) from None


def _subvolume_id(path: str) -> int:
    buffer = bytearray(struct.pack("=QQ4080s", 0, _SUBVOLUME_INODE, b""))
    try:
        descriptor = os.open(path, _OPEN)
        try:
            fcntl.ioctl(descriptor, _INO_LOOKUP, buffer)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise from_os_error(error, "look up subvolume", path) from None
    return int(struct.unpack_from("=Q", buffer)[0])
