"""Large outputs: one append-only file a scope.

Bytes are written before the row that names them is committed. What no row names (after a crash, or a commit that
failed) is never read, and goes with the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from libdsec.protocol.errors import CapacityError, IntegrityError

_SUFFIX = ".blob"
_VECTOR = 512
"""Pieces written by one system call."""


class Blobs:
    """Methods may be called in threads, for different bytes of a file at once."""

    def __init__(self, directory: str, *, durable: bool = False) -> None:
        """`durable`: what was written is on the disk when `write` returns, which takes a thread."""
        self._directory = directory
        self.durable = durable
        os.makedirs(directory, mode=0o700, exist_ok=True)
        os.chmod(directory, 0o700)  # of an earlier one too

    def size(self, scope: int) -> int:
        """Where the next output goes at the earliest."""
        try:
            return os.stat(self._path(scope)).st_size
        except FileNotFoundError:
            return 0

    def write(self, scope: int, offset: int, pieces: Sequence[bytes]) -> None:
        """:raises CapacityError: the disk is full or refuses; bytes at `offset` and later may be anything then."""
        path = self._path(scope)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                for start in range(0, len(pieces), _VECTOR):
                    offset += _write_all(descriptor, pieces[start : start + _VECTOR], offset)
                if self.durable:
                    os.fsync(descriptor)
                    self._sync_directory()
            finally:
                os.close(descriptor)
        except OSError as error:
            raise CapacityError(f"cannot write recorded output to {path}: {error.strerror}", path=path) from error

    def read(self, scope: int, offset: int, size: int) -> bytes:
        """:raises IntegrityError: the file has not so many bytes."""
        path = self._path(scope)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                data = os.pread(descriptor, size, offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise IntegrityError(f"cannot read recorded output from {path}: {error.strerror}", path=path) from error
        if len(data) != size:
            raise IntegrityError(
                f"cannot read recorded output from {path}: it ends after {len(data)} of {size} bytes at {offset}",
                path=path,
            )
        return data

    def remove(self, scope: int) -> None:
        """Idempotent."""
        try:
            os.unlink(self._path(scope))
        except FileNotFoundError:
            return

    def scopes(self) -> Iterable[int]:
        """Scopes that have a file."""
        with os.scandir(self._directory) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            number = name.removesuffix(_SUFFIX)
            if name.endswith(_SUFFIX) and number.isdecimal():
                yield int(number)

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _path(self, scope: int) -> str:
        return os.path.join(self._directory, f"{scope}{_SUFFIX}")


def _write_all(descriptor: int, pieces: Sequence[bytes], offset: int) -> int:
    """How many bytes these were."""
    total = sum(map(len, pieces))
    written = os.pwritev(descriptor, pieces, offset)
    if written < total:
        rest = memoryview(b"".join(pieces))
        while written < total:
            written += os.pwrite(descriptor, rest[written:], offset + written)
    return total
