"""Which chunks the first start from a layer read, in order: what the next start will most likely want first.

Recorded for a while after the first mount, bounded, then kept in a file beside the layer, which stays when the data is
evicted.
"""

from __future__ import annotations

import array
import os

TRACE_NAME = "trace.chunks"
RECORD_S = 30.0
MAX_CHUNKS = 4096


class Trace:
    """Used on one event loop."""

    def __init__(self, directory: str, chunks: int, now: float) -> None:
        self._path = os.path.join(directory, TRACE_NAME)
        self.earlier = _load(self._path, chunks)
        """In order; empty when this start is the first."""
        self._seen: dict[int, None] = {}
        self._until = now + RECORD_S

    def note(self, first: int, end: int, now: float) -> None:
        """Chunks first..end were read."""
        if not self.earlier and now < self._until and len(self._seen) < MAX_CHUNKS:
            self._seen.update(dict.fromkeys(range(first, end)))

    def save(self) -> None:
        """:raises OSError: no room; the next start records anew."""
        if self.earlier or not self._seen:
            return
        partial = f"{self._path}.partial"
        with open(partial, "wb") as file:
            array.array("I", list(self._seen)[:MAX_CHUNKS]).tofile(file)
        os.rename(partial, self._path)


def _load(path: str, chunks: int) -> tuple[int, ...]:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_CHUNKS * 4)
    except FileNotFoundError:
        return ()
    numbers = array.array("I")
    numbers.frombytes(data[: len(data) & ~3])
    return tuple(chunk for chunk in dict.fromkeys(numbers) if chunk < chunks)
