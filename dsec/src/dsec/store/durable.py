"""What must be on the disk before somebody relies on it."""

from __future__ import annotations

import os


def sync_directory(path: str) -> None:
    """The names in it. Of the files themselves this says nothing."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: str, content: bytes | bytearray) -> None:
    """A file's bytes. Its name is there once its directory is synced."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
