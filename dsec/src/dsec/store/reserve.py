"""Room on the disk for what makes room: before an image's files can go, the catalogue must be written."""

from __future__ import annotations

import errno
import os

BYTES = 256 * 1024


class Reserve:
    """A file that is there to be given back when the disk is full."""

    def __init__(self, path: str) -> None:
        self._path = path

    def fill(self) -> None:
        """Have it again, unless the disk is full: a node must start all the same."""
        try:
            with open(self._path, "ab", opener=_private) as file:
                if os.fstat(file.fileno()).st_blocks * 512 < BYTES:
                    os.posix_fallocate(file.fileno(), 0, BYTES)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise

    def give_back(self) -> bool:
        """False: there was nothing to give."""
        try:
            there = os.stat(self._path).st_blocks > 0
            os.truncate(self._path, 0)
        except FileNotFoundError:
            return False
        return there


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
