"""Mounts: EROFS images as detached mounts, clones with shifted ids, attaching and detaching.

A detached mount is a descriptor; it lies in no namespace, nothing has to be unmounted, closing it ends it. That is
how layers are held.

EROFS reads straight from files since Linux 6.12, and only from file systems with a page cache of the usual kind (not
tmpfs). Elsewhere loop devices carry the data. Which way works is found by mounting an empty image, once a file system
and process.
"""

from __future__ import annotations

import errno
import functools
import os
import tempfile
from dataclasses import dataclass, field
from typing import Literal

from . import syscalls
from .loops import open_loop
from .specimen import empty_erofs
from .syscalls import KernelError

Method = Literal["files", "loop"]

_LAYER_ATTRIBUTES = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOATIME


def mount_erofs(metadata: str, data: str | None, *, label: str = "", method: Method | None = None) -> int:
    """A detached read-only mount of an EROFS image whose file contents lie in a second file.

    `label` stands in errors for the file names. `method` forces a way; None takes the one that works here.

    :raises KernelError: a file is missing, or the kernel takes it for no EROFS image.
    """
    target = f"{label} ({metadata})" if label else metadata
    for path in (metadata, data):
        if path is not None and not os.path.isfile(path):
            raise KernelError(errno.ENOENT, "mount EROFS image", target, f"{path} is missing")
    if method is None:
        method = erofs_method(os.path.dirname(os.path.abspath(metadata)))
    if method == "files":
        return _mount_erofs_devices(metadata, data, target)
    return _mount_erofs_loop(metadata, data, target)


def erofs_method(directory: str) -> Method:
    """Whether this kernel mounts EROFS images straight from files on the directory's file system."""
    return _method_on(_FileSystem(os.stat(directory).st_dev, directory))


@dataclass(frozen=True)
class _FileSystem:
    """Equal to every other place on the same device."""

    device: int
    directory: str = field(compare=False)


@functools.lru_cache(maxsize=64)
def _method_on(place: _FileSystem) -> Method:
    with tempfile.TemporaryFile(dir=place.directory) as file:
        file.write(empty_erofs())
        file.flush()
        try:
            os.close(_mount_erofs_devices(f"/proc/self/fd/{file.fileno()}", None, "an empty image"))
        except KernelError:
            return "loop"
    return "files"


def _mount_erofs_loop(metadata: str, data: str | None, target: str) -> int:
    """The mount keeps the devices busy, so the descriptors may go as soon as it exists."""
    loops = [open_loop(path) for path in (metadata, data) if path is not None]
    try:
        return _mount_erofs_devices(loops[0][1], loops[1][1] if data is not None else None, target)
    finally:
        for descriptor, _ in loops:
            os.close(descriptor)


def _mount_erofs_devices(metadata: str, data: str | None, target: str) -> int:
    options = [("source", metadata)] + ([] if data is None else [("device", data)])
    return mount_detached("erofs", options, ["ro"], _LAYER_ATTRIBUTES, target)


def mount_detached(
    filesystem: str, options: list[tuple[str, str]], flags: list[str], attributes: int, target: str
) -> int:
    """A detached mount of any file system. `target` names it in errors."""
    context = syscalls.fsopen(filesystem)
    try:
        for key, value in options:
            syscalls.fsconfig(context, syscalls.FSCONFIG_SET_STRING, key, value, 0, target)
        for key in flags:
            syscalls.fsconfig(context, syscalls.FSCONFIG_SET_FLAG, key, None, 0, target)
        syscalls.fsconfig(context, syscalls.FSCONFIG_CMD_CREATE, None, None, 0, target)
        return syscalls.fsmount(context, attributes, target)
    finally:
        os.close(context)


def attach(mount: int, path: str) -> None:
    """Show a detached mount at a path of this mount namespace; `umount` takes it away again."""
    syscalls.move_mount(mount, path)


def clone(path: str) -> int:
    """A detached clone of the mount that a path lies in, with the path as its root."""
    return syscalls.open_tree(path)


def idmap(mount: int, user_namespace: int, target: str) -> None:
    """Shift the ids of a detached mount by a user namespace's maps."""
    syscalls.mount_setattr(mount, syscalls.MOUNT_ATTR_IDMAP, 0, user_namespace, target)


def umount(path: str, *, lazy: bool = False) -> None:
    """:raises KernelError: EINVAL when nothing is mounted there, EBUSY when it is in use and not `lazy`."""
    syscalls.umount(path, syscalls.UMOUNT_NOFOLLOW | (syscalls.MNT_DETACH if lazy else 0))


def detach_if_mounted(path: str) -> bool:
    """Lazily detach what is mounted at a path; False when nothing is, or the path is not there."""
    try:
        umount(path, lazy=True)
    except KernelError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return False
        raise
    return True
