"""Writable directories of sandboxes: the upper and work directories of an overlay.

Without a limit they are plain directories in `PARENT/NAME`. With one they lie in a file system of their own: a btrfs
subvolume with a quota group where the parent is on btrfs and only bytes are bounded, else a sized ext4 in a sparse
file, mounted through a loop device at `PARENT/NAME/fs`. Asking for what none of these can give is an error.

Of an upper in a subvolume a `snapshot` can be had beside it, one at a time, which is read while the sandbox goes on.

The upper belongs to the first id of the sandbox's range, so that root inside owns `/`. `PARENT/NAME` is mode 0700:
set-user-id programs that a sandbox makes are out of reach of the host's users.

Nothing is remembered apart from the directories: after a crash `leftovers` lists them, `open_upper` takes one over
and its `remove` works as if this process had made it.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from libdsec.protocol.errors import InvalidArgumentError

from . import btrfs, mounts, sized
from .removal import Trash, remove_tree
from .syscalls import KernelError, from_os_error

TRASH = ".trash"


@dataclass(frozen=True)
class Upper:
    """Absolute paths; the two directories are on one file system and empty when made."""

    home: str
    path_upper: str
    path_work: str

    @property
    def has_snapshots(self) -> bool:
        """Whether its file system has such."""
        return btrfs.is_subvolume(_mount_path(self.home))

    def snapshot(self) -> str:
        """The path of a read-only copy of the upper, as it is now; legal where it `has_snapshots`. It takes the place
        of an earlier one.

        :raises KernelError: there is no room for it.
        """
        self.remove_snapshot()
        copy = _snapshot_path(self.home)
        btrfs.snapshot_subvolume(_mount_path(self.home), copy)
        return os.path.join(copy, os.path.basename(self.path_upper))

    def remove_snapshot(self) -> None:
        """Nothing happens where there is none."""
        if btrfs.is_subvolume(_snapshot_path(self.home)):
            btrfs.remove_subvolume(_snapshot_path(self.home))

    def remove(self, trash: Trash | None = None) -> None:
        """Give everything back. With a trash the removal of the files goes on in its thread. Twice is fine.

        :raises KernelError: something could not be given back; `leftovers` will list it again.
        """
        self.remove_snapshot()
        place = _mount_path(self.home)
        # a mount's files go with the image file; what still holds the mount keeps the loop device until it ends
        if os.path.isdir(place) and not mounts.detach_if_mounted(place) and btrfs.is_subvolume(place):
            btrfs.remove_subvolume(place)
        if trash is None:
            remove_tree(self.home)
        elif (thrown := trash.throw(self.home)) is not None:
            trash.empty_later(thrown)


def make_upper(parent_dir: str, name: str, owner_id: int, bytes: int | None = None, inodes: int | None = None) -> Upper:
    """Fresh upper and work directories below `parent_dir/name`, which must not exist.

    :raises UnsupportedOperationError: the limit cannot be had on this machine; says what is missing.
    :raises InvalidArgumentError: a limit smaller than what a file system needs for itself.
    :raises KernelError: the kernel or the disk refused; nothing is left behind.
    """
    if name.startswith(".") or "/" in name:
        raise InvalidArgumentError(f"cannot make an upper named {name!r}: not a plain name", field="name")
    home = os.path.join(os.path.abspath(parent_dir), name)
    try:
        os.mkdir(home, 0o700)
    except OSError as error:
        raise from_os_error(error, "mkdir", home) from None
    try:
        place = home
        if bytes is not None or inodes is not None:
            place = _mount_path(home)
            if inodes is None and bytes is not None and btrfs.is_btrfs(home):
                btrfs.make_subvolume(place, bytes)
            else:
                sized.make_sized(os.path.join(home, "image"), place, bytes, inodes)
        upper = _upper(home, place)
        os.mkdir(upper.path_upper, 0o755)
        os.mkdir(upper.path_work, 0o755)
        os.chown(upper.path_upper, owner_id, owner_id)
    except OSError as error:
        _upper(home, home).remove()
        raise error if isinstance(error, KernelError) else from_os_error(error, "make upper", home) from error
    except BaseException:
        _upper(home, home).remove()
        raise
    return upper


def open_upper(parent_dir: str, name: str) -> Upper:
    """One that an earlier process made, without the snapshot that this may have left.

    :raises KernelError: there is none of that name (ENOENT).
    """
    home = os.path.join(os.path.abspath(parent_dir), name)
    place = _mount_path(home) if os.path.isdir(_mount_path(home)) else home
    upper = _upper(home, place)
    for path in (upper.path_upper, upper.path_work):
        if not os.path.isdir(path):
            raise KernelError(errno.ENOENT, "open upper", path)
    upper.remove_snapshot()
    return upper


def leftovers(parent_dir: str) -> list[str]:
    """Names of all uppers below the parent, whole or half-made."""
    try:
        return sorted(name for name in os.listdir(parent_dir) if not name.startswith("."))
    except FileNotFoundError:
        return []


def remove_leftover(parent_dir: str, name: str, trash: Trash | None = None) -> None:
    """Remove an upper in whatever state it is."""
    home = os.path.join(os.path.abspath(parent_dir), name)
    _upper(home, home).remove(trash)


def _mount_path(home: str) -> str:
    return os.path.join(home, "fs")


def _snapshot_path(home: str) -> str:
    return os.path.join(home, "snapshot")


def _upper(home: str, place: str) -> Upper:
    return Upper(home, os.path.join(place, "upper"), os.path.join(place, "work"))
