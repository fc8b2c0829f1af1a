"""What is counted of a layer: fetches, waits, errors. Kept beside it, so that a count outlives the process."""

from __future__ import annotations

import os
from collections import deque

import msgspec

COUNTS_NAME = "present.counts"
WAITS_KEPT = 2048


class _Kept(msgspec.Struct, omit_defaults=True):
    source: str = ""
    fetched_bytes: int = 0
    requests: int = 0
    reads_waited: int = 0
    errors: int = 0
    waits_ms: list[float] = []
    """The latest."""


class Counts:
    """Used on one event loop, but for reading."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, COUNTS_NAME)
        kept = _load(self._path)
        self.source = kept.source
        self.fetched_bytes, self.requests = kept.fetched_bytes, kept.requests
        self.reads_waited, self.errors = kept.reads_waited, kept.errors
        self._waits: deque[float] = deque(kept.waits_ms, WAITS_KEPT)

    def fetched(self, requests: int, size: int) -> None:
        self.requests += requests
        self.fetched_bytes += size

    def waited(self, seconds: float) -> None:
        self.reads_waited += 1
        self._waits.append(round(seconds * 1000, 3))

    def quantile(self, share: float) -> float:
        """Of the latest waits, in milliseconds; 0 where there were none."""
        ordered = sorted(self._waits)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0

    def save(self) -> None:
        """:raises OSError: no room; nothing that matters is lost."""
        kept = _Kept(self.source, self.fetched_bytes, self.requests, self.reads_waited, self.errors, list(self._waits))
        partial = f"{self._path}.partial"
        with open(partial, "wb") as file:
            file.write(msgspec.json.encode(kept))
        os.rename(partial, self._path)


def _load(path: str) -> _Kept:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=_Kept)
    except (FileNotFoundError, msgspec.DecodeError):
        return _Kept()
