"""Reading and writing a directory's control files; every error names the file, and on a write the value."""

from __future__ import annotations

import errno
import os

from ..syscalls import KernelError, from_os_error


def write(directory: str, name: str, value: str) -> None:
    path = f"{directory}/{name}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise from_os_error(error, "write", path, f"value {value}") from None


def write_if_there(directory: str, name: str, value: str) -> None:
    try:
        write(directory, name, value)
    except KernelError as error:
        if error.errno != errno.ENOENT:
            raise


def read(directory: str, name: str) -> str:
    path = f"{directory}/{name}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 65_536).decode("ascii", "replace")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise from_os_error(error, "read", path) from None


def read_int(directory: str, name: str) -> int:
    return int(read(directory, name))


def read_field(directory: str, name: str, key: str) -> int:
    """One `key number` line; 0 where this kernel does not count it."""
    try:
        text = read(directory, name)
    except KernelError as error:
        if error.errno == errno.ENOENT:
            return 0
        raise
    for line in text.splitlines():
        found, _, value = line.partition(" ")
        if found == key:
            return int(value)
    return 0


def pids(directory: str, name: str = "cgroup.procs") -> list[int]:
    """Empty when the directory is gone. `tasks`, on v1, has every thread."""
    try:
        return [int(pid) for pid in read(directory, name).split()]
    except KernelError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return []
        raise
