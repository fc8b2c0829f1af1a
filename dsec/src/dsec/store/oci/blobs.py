"""Streams that are checked while they pass."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import Any, Final, Protocol

from libdsec.protocol.errors import IntegrityError

MAX_DRAIN: Final = 256 * 1024


class Bytes(Protocol):
    """Where bytes come from."""

    def readinto(self, view: memoryview, /) -> int | None:
        """Fill the beginning of `view`; 0 is the end."""

    def close(self) -> None: ...


class Verified(io.RawIOBase):
    """The bytes of `inner`, which must be `size` many and have `digest` (either may be unknown: None, "").

    The check is made when the end is read; whoever stops before it has checked nothing.
    """

    def __init__(
        self, inner: Bytes, what: str, *, digest: str = "", size: int | None = None, told: Callable[[int], None]
    ) -> None:
        """`what` names it in errors, `told` is called with the number of bytes of each read and may raise."""
        super().__init__()
        self._inner = inner
        self._what = what
        self._digest = digest
        self._size = size
        self._told = told
        self._hash = hashlib.sha256()
        self._ended = False
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        """:raises IntegrityError: these are not the bytes that were promised."""
        view = memoryview(buffer)
        if self._ended or not len(view):
            return 0
        got = self._inner.readinto(view)
        if not got:
            self._ended = True
            self._check()
            return 0
        self.count += got
        if self._size is not None and self.count > self._size:
            raise IntegrityError(f"cannot use {self._what}: it is longer than the {self._size} bytes that it should be")
        self._hash.update(view[:got])
        self._told(got)
        return got

    def drain(self) -> None:
        """Read to the end, for the check's sake."""
        buffer = memoryview(bytearray(MAX_DRAIN))
        while self.readinto(buffer):
            pass

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()

    def _check(self) -> None:
        if self._size is not None and self.count != self._size:
            raise IntegrityError(f"cannot use {self._what}: it has {self.count} bytes, not {self._size}")
        found = f"sha256:{self._hash.hexdigest()}"
        if self._digest and found != self._digest:
            raise IntegrityError(f"cannot use {self._what}: its bytes have the digest {found}, not {self._digest}")
