"""Taking directories away that hostile code has filled.

No path is ever built from what is found: every step is relative to a descriptor, opened without following links.
Depth costs nothing, since a directory below the top is moved up to the top before it is emptied: two descriptors are
enough for any tree. Names are whatever bytes they are. Immutable and append-only flags are cleared on refusal.

A tree is first renamed into a trash directory, which is one system call; `Trash` then empties that directory, at once
or in a thread of its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import secrets
import stat
import struct
import threading

from .syscalls import KernelError, from_os_error

_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS = 0x80086601, 0x40086602
_IMMUTABLE_APPEND = 0x10 | 0x20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BATCH = 4096
"""Names held at once while a directory is emptied."""


def remove_tree(path: str) -> None:
    """Remove a directory and all below it; nothing there is fine. Mount points below it must be gone.

    :raises KernelError: something could not be removed; what was removed before stays removed.
    """
    try:
        top = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return
    except OSError as error:
        raise from_os_error(error, "open", path) from None
    try:
        _empty(top, path)
    finally:
        os.close(top)
    try:
        os.rmdir(path)
    except OSError as error:
        raise from_os_error(error, "rmdir", path) from None


def _empty(top: int, path: str) -> None:
    """Empty the directory `top`. Directories in it are emptied in turn, those in them are moved up into it."""
    moved = _Moved()
    while entries := _entries(top, path):
        for name, is_directory in entries:
            if not is_directory:
                _unlink(top, name, path)
            elif not _try_rmdir(top, name):
                child = _open_directory(top, name, path)
                try:
                    _hoist(child, top, moved, path)
                finally:
                    os.close(child)
                _rmdir(top, name, path)


def _hoist(child: int, top: int, moved: _Moved, path: str) -> None:
    """Empty `child`: files are unlinked, directories that have something in them go up into `top`."""
    while entries := _entries(child, path):
        for name, is_directory in entries:
            if not is_directory:
                _unlink(child, name, path)
            elif not _try_rmdir(child, name):
                _move_up(child, name, top, moved.next_name(), path)


class _Moved:
    """Names for what is moved up. Random, since what is there already was named by others."""

    def __init__(self) -> None:
        self._prefix = f".{secrets.token_hex(8)}-"
        self._count = 0

    def next_name(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count}"


def _move_up(child: int, name: str, top: int, target: str, path: str) -> None:
    try:
        os.rename(name, target, src_dir_fd=child, dst_dir_fd=top)
        return
    except PermissionError:
        _clear_flags(child, None)
        _clear_flags(child, name)
    try:
        os.rename(name, target, src_dir_fd=child, dst_dir_fd=top)
    except OSError as error:
        raise from_os_error(error, "rename", f"{path}/.../{name!r}") from None


def _entries(directory: int, path: str) -> list[tuple[str, bool]]:
    """Up to a batch of names, and which are directories. Read from the start each time, since removing while reading
    may skip some."""
    entries: list[tuple[str, bool]] = []
    try:
        with os.scandir(directory) as found:
            for entry in found:
                entries.append((entry.name, entry.is_dir(follow_symlinks=False)))
                if len(entries) == _BATCH:
                    break
    except OSError as error:
        raise from_os_error(error, "list", path) from None
    return entries


def _open_directory(parent: int, name: str, path: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        raise from_os_error(error, "open", f"{path}/.../{name!r}") from None


def _unlink(directory: int, name: str, path: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
        return
    except FileNotFoundError:
        return
    except PermissionError:
        _clear_flags(directory, None)
        _clear_flags(directory, name)
    try:
        os.unlink(name, dir_fd=directory)
    except OSError as error:
        raise from_os_error(error, "unlink", f"{path}/.../{name!r}") from None


def _try_rmdir(directory: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError:
        return False
    return True


def _rmdir(directory: int, name: str, path: str) -> None:
    if _try_rmdir(directory, name):
        return
    _clear_flags(directory, None)
    _clear_flags(directory, name)
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError as error:
        raise from_os_error(error, "rmdir", f"{path}/.../{name!r}") from None


def _clear_flags(directory: int, name: str | None) -> None:
    """Clear immutable and append-only of an entry, or of the directory itself. Others keep their refusal."""
    try:
        if name is not None:
            kind = stat.S_IFMT(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFDIR):
                return
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open("." if name is None else name, flags, dir_fd=directory)
    except OSError:
        return
    try:
        buffer = bytearray(8)
        fcntl.ioctl(descriptor, _FS_IOC_GETFLAGS, buffer)
        (value,) = struct.unpack("=I4x", buffer)
        if value & _IMMUTABLE_APPEND:
            fcntl.ioctl(descriptor, _FS_IOC_SETFLAGS, struct.pack("=I4x", value & ~_IMMUTABLE_APPEND))
    except OSError:
        return
    finally:
        os.close(descriptor)


class Trash:
    """A directory whose entries are on their way out. One a file system, since a rename does not cross them."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.failures: list[str] = []
        """The last things that could not be removed, at most 16; `empty` at the next start tries again."""
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._worker: threading.Thread | None = None
        self._lock = threading.Lock()
        os.makedirs(directory, 0o700, exist_ok=True)

    def throw(self, path: str) -> str | None:
        """Rename a tree into the trash; from then on its path is free. None when there is nothing at the path."""
        target = os.path.join(self.directory, secrets.token_hex(12))
        try:
            os.rename(path, target)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise from_os_error(error, "rename", path) from None
        return target

    def empty(self) -> None:
        """Remove everything in it now, leftovers of a crash too.

        :raises KernelError: something could not be removed; the rest was.
        """
        failed: KernelError | None = None
        for name in os.listdir(self.directory):
            try:
                remove_tree(os.path.join(self.directory, name))
            except KernelError as error:
                if error.errno != errno.ENOENT:
                    failed = error
        if failed is not None:
            raise failed

    def empty_later(self, path: str) -> None:
        """Have one thing thrown in here removed in the background."""
        with self._lock:
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="dsec-trash", daemon=True)
                self._worker.start()
        self._queue.put(path)

    def pending(self) -> int:
        """Things thrown away that are still on the disk."""
        return len(os.listdir(self.directory))

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop the worker after what it is at; what is left is found by `empty` of the next start."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            self._queue.put(None)
            worker.join(timeout_s)

    def _work(self) -> None:
        while (path := self._queue.get()) is not None:
            try:
                remove_tree(path)
            except KernelError as error:
                self.failures = [*self.failures[-15:], str(error)]
