"""Layers, overlays, loop devices and limits on disk."""

from __future__ import annotations

import errno
import os
import subprocess

from .. import btrfs, mounts, syscalls, uppers
from ..loops import open_loop
from ..specimen import empty_erofs
from .child import in_child
from .verdict import Degraded, Trial

_SIZE = 16 * 1024 * 1024
_INODES = 1024
_NAMES = {
    0x9123683E: "btrfs",
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlayfs",
}


def _erofs_files(scratch: str) -> str:
    os.close(mounts.mount_erofs(_image(scratch), None, method="files"))
    return "an image was mounted straight from a file"


def _erofs_loop(scratch: str) -> str:
    os.close(mounts.mount_erofs(_image(scratch), None, method="loop"))
    return "an image was mounted through a loop device"


def _loop(scratch: str) -> str:
    path = os.path.join(scratch, "loop")
    with open(path, "wb") as file:
        file.write(b"loop".ljust(4096, b"\0"))
    descriptor, device = open_loop(path)
    try:
        if os.pread(descriptor, 4, 0) != b"loop":
            raise RuntimeError(f"{device} does not read what its file has")
    finally:
        os.close(descriptor)
    return f"{device} was made, read and given back"


def _disk_limits(scratch: str) -> str:
    """Run into both limits of an upper."""
    upper = uppers.make_upper(scratch, "limited", 0, bytes=_SIZE, inodes=_INODES)
    try:
        full = _until_full(os.path.join(upper.path_upper, "file"))
        made = _until_no_inode(upper.path_upper)
    finally:
        upper.remove()
    return f"an upper of {_SIZE} bytes was full after {full}, one of {_INODES} inodes after {made} files"


def _until_full(path: str) -> int:
    written = 0
    with open(path, "wb", buffering=0) as file:
        while written <= _SIZE:
            try:
                written += file.write(bytes(1024 * 1024))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                break
        else:
            raise RuntimeError("the limit on bytes was not enforced")
    os.unlink(path)
    return written


def _until_no_inode(directory: str) -> int:
    for number in range(_INODES + 1):
        try:
            os.mknod(os.path.join(directory, str(number)))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return number
    raise RuntimeError("the limit on inodes was not enforced")


def _ext4_quota(scratch: str) -> str:
    image, point = os.path.join(scratch, "quota"), os.path.join(scratch, "quota.fs")
    with open(image, "wb") as file:
        file.truncate(_SIZE)
    subprocess.run(
        ["mkfs.ext4", "-q", "-F", "-O", "quota,project,^has_journal", image],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=30,
        env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"},
    )
    os.mkdir(point)
    loop, device = open_loop(image, read_only=False)
    try:
        os.close(mounts.mount_detached("ext4", [("source", device)], ["prjquota"], 0, "ext4 with project quotas"))
    finally:
        os.close(loop)
    return "ext4 with project quotas was mounted"


def _btrfs(scratch: str) -> str:
    if not btrfs.is_btrfs(scratch):
        number = syscalls.filesystem_magic(scratch)
        os.close(syscalls.fsopen("btrfs"))
        name = _NAMES.get(number, hex(number))
        raise Degraded(f"the kernel has btrfs, the state directory is on {name}: limits on disk use loop devices")
    path = os.path.join(scratch, "subvolume")
    btrfs.make_subvolume(path, _SIZE)
    btrfs.remove_subvolume(path)
    return "a subvolume with a limit was made and removed"


def _image(scratch: str) -> str:
    path = os.path.join(scratch, "empty.erofs")
    with open(path, "wb") as file:
        file.write(empty_erofs())
    return path


TRIALS = (
    Trial(
        "erofs-files",
        _erofs_files,
        "degraded",
        "use Linux 6.12 or newer and a disk file system for the state directory; until then loop devices serve",
    ),
    Trial("erofs-loop", _erofs_loop, "degraded", "load the modules erofs and loop"),
    Trial(
        "overlay-idmapped",
        in_child("overlay_idmapped"),
        "missing",
        "use a kernel with overlayfs and EROFS that can shift ids (Linux 5.19), and a disk for the state directory "
        "that can carry an upper (ext4, xfs, btrfs)",
    ),
    Trial("loop", _loop, "degraded", "load the module loop; in a container, give it /dev/loop-control and /dev/loop*"),
    Trial(
        "disk-limits",
        _disk_limits,
        "degraded",
        "install e2fsprogs and allow loop devices; until then limits are refused",
    ),
    Trial("ext4-quota", _ext4_quota, "degraded", "nothing needs it: limits on disk use loop devices"),
    Trial("btrfs", _btrfs, "degraded", "put the state directory on btrfs with quotas on for cheaper limits on disk"),
    Trial(
        "fanotify-pre-content",
        in_child("pre_content"),
        "degraded",
        "use Linux 6.14 or newer with CONFIG_FANOTIFY_ACCESS_PERMISSIONS, and a disk for the state directory; until "
        "then layers of a shared store are fetched whole before their first sandbox",
    ),
)
