"""Getting chunks of one layer from the store into its data file: each asked for once at a time.

A chunk is *claimed* from the moment a reader needs it, or the turn of a request for what nobody waits for has come,
until it has landed or was given up; who wants it meanwhile waits for that. What lands is checked and written in the
thread that delivers it; all else is on the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator

from libdsec.protocol.errors import DSecError, IntegrityError, UnavailableError

from .base import ChunkSource
from .bounds import Bounds
from .cache import DataCache
from .counts import Counts
from .turns import Turns

Landed = Callable[[int, Exception | None], None]
"""(chunk, None or why it could not be taken), on the loop, while the chunk is still claimed."""

GivenUp = Callable[[dict[int, Exception]], None]
"""Told on the loop what did not come, and why."""


class Flights:
    """Used on one event loop, which is that of its maker."""

    def __init__(
        self, cache: DataCache, source: ChunkSource, turns: Turns, bounds: Bounds, counts: Counts, landed: Landed
    ) -> None:
        self._cache, self._source, self._turns = cache, source, turns
        self._bounds, self._counts, self._landed = bounds, counts, landed
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._claimed: set[int] = set()
        self._released: asyncio.Future[None] = self._loop.create_future()

    def claimed(self, chunk: int) -> bool:
        return chunk in self._claimed

    async def settled(self, first: int, end: int) -> None:
        """Until nothing of a range is claimed that is not there."""
        while not self._claimed.isdisjoint(self._cache.present.absent(first, end)):
            await asyncio.shield(self._released)

    def wanted(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Runs (first, count) of what is neither there nor claimed."""
        missing = (chunk for chunk in self._cache.present.absent(first, end) if chunk not in self._claimed)
        return runs(missing, self._bounds.run)

    def claim(self, first: int, count: int) -> None:
        self._claimed.update(range(first, first + count))

    def release(self, first: int, count: int) -> None:
        self._claimed.difference_update(range(first, first + count))
        self._released.set_result(None)
        self._released = self._loop.create_future()

    async def fetch(self, first: int, count: int) -> dict[int, Exception]:
        """Ask the store for chunks that readers wait for and the caller has claimed; returns those that did not come,
        and why."""
        async with self._turns.turn(self._cache.layer.digest, ahead=False):
            return await self._ask(first, count, self._bounds.fetch_deadline_s)

    async def fetch_ahead(self, first: int, end: int, given_up: GivenUp) -> dict[int, Exception]:
        """Ask for what of a range is neither there nor claimed when its turn has come: until then a reader who needs
        it asks before. As `fetch` in all else; `given_up` is told too, as soon as it is claimed no more."""
        failed: dict[int, Exception] = {}
        async with self._turns.turn(self._cache.layer.digest, ahead=True):
            while (run := next(self.wanted(first, end), None)) is not None:
                at, first = run[0], run[0] + run[1]
                ended = UnavailableError(f"cannot load layer {self._cache.layer.digest}: its fetching was given up")
                lost: dict[int, Exception] = dict.fromkeys(range(at, first), ended)
                self.claim(*run)
                try:
                    lost = await self._ask(*run, self._bounds.ahead_deadline_s)
                finally:
                    # also after a cancel: readers may have come to wait for what was claimed
                    self.release(*run)
                    given_up(lost)
                failed |= lost
        return failed

    async def _ask(self, first: int, count: int, patience: float) -> dict[int, Exception]:
        failed: dict[int, Exception] = {}
        why: Exception = IntegrityError(
            f"cannot load layer {self._cache.layer.digest}: the store has not delivered all that was asked for"
        )
        arrivals = _Arrivals(self, first, count, failed)
        patience += count * self._cache.chunks.size / self._bounds.second_bytes
        try:
            async with asyncio.timeout(patience):
                cost = await self._source.fetch(first, count, arrivals.deliver)
            self._counts.fetched(cost.requests, cost.bytes)
        except TimeoutError:
            self._counts.fetched(1, 0)
            why = UnavailableError(
                f"cannot load layer {self._cache.layer.digest}: the store took more than {patience:g} s for "
                f"{count} chunks"
            )
        except DSecError as error:
            self._counts.fetched(1, 0)
            why = error
        finally:
            arrivals.close()
        for chunk in range(first, first + count):
            if not self._cache.present.has(chunk):
                failed.setdefault(chunk, why)
        return failed

    def _take(self, chunk: int, data: bytes) -> Exception | None:
        try:
            self._cache.put(chunk, data)
        except (DSecError, OSError) as error:
            return error
        return None

    def _tell(self, chunk: int, error: Exception | None, failed: dict[int, Exception]) -> None:
        if error is not None:
            failed[chunk] = error
        self._landed(chunk, error)


class _Arrivals:
    """What one request delivers. A chunk that was not asked for, came already, or comes late is left lying."""

    def __init__(self, flights: Flights, first: int, count: int, failed: dict[int, Exception]) -> None:
        self._flights, self._failed = flights, failed
        self._due = set(range(first, first + count))
        self._lock = threading.Lock()
        self._writing = 0
        self._idle = threading.Condition(self._lock)

    def deliver(self, chunk: int, data: bytes) -> None:
        with self._lock:
            if chunk not in self._due:
                return
            self._due.discard(chunk)
            self._writing += 1
        try:
            error = self._flights._take(chunk, data)
        finally:
            with self._idle:
                self._writing -= 1
                self._idle.notify_all()
        if threading.get_ident() == self._flights._thread:
            self._flights._tell(chunk, error, self._failed)
        else:
            self._flights._loop.call_soon_threadsafe(self._flights._tell, chunk, error, self._failed)

    def close(self) -> None:
        """From now on nothing is written any more."""
        with self._idle:
            self._due.clear()
            self._idle.wait_for(lambda: not self._writing)


def runs(chunks: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Ascending numbers as runs (first, count) of neighbours, none longer than `most`."""
    first = count = 0
    for chunk in chunks:
        if count and chunk == first + count and count < most:
            count += 1
            continue
        if count:
            yield first, count
        first, count = chunk, 1
    if count:
        yield first, count
