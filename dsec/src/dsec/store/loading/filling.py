"""One layer being filled: readers that wait, what they wait for, and what is fetched before anybody asks.

A reader is answered when every chunk of its range is in the data file; refused when one of them cannot be had: the
store has it wrong, there is no room for it, or it did not come within the reader's deadline. Refusing costs that reader
alone: the next one has the store asked anew.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from dsec import faults
from libdsec.protocol.errors import CapacityError, DSecError, IntegrityError, UnavailableError

from .base import ChunkSource
from .bounds import Bounds, retry_delay
from .cache import DataCache
from .counts import Counts
from .flights import Flights, runs
from .readahead import ReadAhead
from .trace import Trace
from .turns import Turns

LOG_EVERY_S = 1.0
"""A layer."""

_log = structlog.get_logger("dsec.loading")

Answer = Callable[[int], None]
"""(errno, 0 to let it go on): once a reader."""
Work = Coroutine[Any, Any, None]


class _Reader:
    __slots__ = ("answer", "missing", "since", "timer")

    timer: asyncio.TimerHandle

    def __init__(self, answer: Answer, missing: set[int], since: float) -> None:
        self.answer, self.missing, self.since = answer, missing, since


class Filling:
    """Used on one event loop."""

    def __init__(
        self,
        cache: DataCache,
        source: ChunkSource,
        *,
        turns: Turns,
        bounds: Bounds,
        counts: Counts,
        spawn: Callable[[Work], asyncio.Task[None]],
        on_complete: Callable[[], None],
    ) -> None:
        """`on_complete` is called when the last chunk has come, and perhaps again."""
        self.cache, self.counts = cache, counts
        self._bounds, self._start, self._on_complete = bounds, spawn, on_complete
        self._loop = asyncio.get_running_loop()
        self._flights = Flights(cache, source, turns, bounds, counts, self._landed)
        self._read_ahead = ReadAhead(bounds.first_window, bounds.most_window)
        self.trace = Trace(cache.layer.directory, cache.chunks.count, self._loop.time())
        self._waiting: dict[int, list[_Reader]] = {}
        self._log_after = 0.0
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Ask for nothing any more, and write nothing. Whoever waits for what is not there is refused."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        waiting = {id(reader): reader for readers in self._waiting.values() for reader in readers}
        self._waiting.clear()
        for reader in waiting.values():
            there = all(map(self.cache.present.has, reader.missing))
            self._finish(reader, 0 if there else errno.EIO)

    def _spawn(self, work: Work) -> None:
        if self._closed:
            work.close()
            return
        task = self._start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def read(self, offset: int, count: int, answer: Answer) -> None:
        """Somebody wants to read a range, and waits."""
        first, end = self.cache.chunks.of_range(offset, count)
        missing = set(self.cache.present.absent(first, end))
        ahead = self._note(first, end)
        if missing and self._closed:
            answer(errno.EIO)
        elif missing:
            self._wait(missing, answer)
        else:
            answer(0)
        self.prefetch(*ahead)

    def passed(self, first: int, end: int) -> None:
        """Chunks that are here were read: what follows from that."""
        self.prefetch(*self._note(first, end))

    def _note(self, first: int, end: int) -> tuple[int, int]:
        """What to fetch beyond what is read."""
        self.trace.note(first, end, self._loop.time())
        return self._read_ahead.after(first, end)

    def prefetch(self, first: int, end: int) -> None:
        """Fetch a range before anybody waits for it."""
        if first < end and next(self._flights.wanted(first, end), None) is not None:
            self._spawn(self._fetch_ahead(first, end))

    def begin_start(self) -> None:
        """A sandbox is about to read: what an earlier start read is fetched, in its order."""
        self._spawn(self._fetch_trace())

    async def _fetch_trace(self) -> None:
        wanted = [chunk for chunk in self.trace.earlier if not self.cache.present.has(chunk)]
        for first, count in _in_order(wanted, self._bounds.run):
            await self._fetch_ahead(first, first + count)

    async def fill(self) -> None:
        """Fetch all that is missing.

        :raises DSecError: why a part of it cannot be had.
        """
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        queue = list(self._flights.wanted(0, self.cache.chunks.count))
        queue.reverse()

        async def work() -> None:
            while queue:
                await self._fetch_surely(*queue.pop())

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._bounds.ahead):
                    tasks.create_task(work())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        # what others had claimed comes with them
        for chunk in self.cache.present.absent():
            await self._fetch_surely(chunk, 1)

    async def _fetch_surely(self, first: int, count: int) -> None:
        left: Sequence[tuple[int, int]] = [(first, count)]
        for attempt in range(self._bounds.fetch_all_tries):
            failed: dict[int, Exception] = {}
            for run in left:
                failed |= await self._fetch_unclaimed(*run)
            if not failed:
                return
            error = _worst(failed)
            if not isinstance(error, UnavailableError) and attempt + 1 >= self._bounds.damaged_tries:
                break
            left = list(runs(sorted(failed), self._bounds.run))
            await asyncio.sleep(retry_delay(attempt))
        raise error

    async def _fetch_unclaimed(self, first: int, count: int) -> dict[int, Exception]:
        """Ask for what is neither there nor claimed, and wait for what is claimed."""
        failed = await self._flights.fetch_ahead(first, first + count, self._insist_for_readers)
        await self._flights.settled(first, first + count)
        for chunk in self.cache.present.absent(first, first + count):
            failed.setdefault(chunk, UnavailableError(f"cannot load chunk {chunk} of {self.cache.layer.digest} yet"))
        return failed

    async def _fetch_ahead(self, first: int, end: int) -> None:
        # of what does not come, who needs it will ask, and be told
        await self._flights.fetch_ahead(first, end, self._insist_for_readers)

    def _insist_for_readers(self, failed: dict[int, Exception]) -> None:
        """Should readers have come to wait for what was fetched ahead and did not come, it is asked for again."""
        if self._closed:
            return
        waited_for = [chunk for chunk in sorted(failed) if chunk in self._waiting]
        for run in runs(waited_for, self._bounds.run):
            self._flights.claim(*run)
            self._spawn(self._insist(*run, dict(failed)))

    async def _insist(self, first: int, count: int, failed: dict[int, Exception]) -> None:
        """Ask for claimed chunks as long as readers wait for them and it may help. `failed`: how it went before."""
        attempt = 0
        try:
            while True:
                if failed:
                    attempt += 1
                    self._give_up(failed, attempt)
                    if self._waiting.keys().isdisjoint(range(first, first + count)):
                        return
                    await asyncio.sleep(min(retry_delay(attempt - 1), self._bounds.read_deadline_s / 8))
                missing = self.cache.present.absent(first, first + count)
                wanted = [chunk for chunk in missing if chunk in self._waiting]
                if not wanted:
                    return
                failed = {}
                # alone, once they have failed: one that is damaged must not cost its neighbours their readers
                for run in runs(wanted, 1 if attempt else self._bounds.run):
                    failed |= await self._flights.fetch(*run)
        finally:
            self._flights.release(first, count)

    def _give_up(self, failed: dict[int, Exception], attempt: int) -> None:
        """Refuse the readers of what another request would not bring."""
        for chunk, error in failed.items():
            tries = self._bounds.damaged_tries if isinstance(error, IntegrityError) else 1
            if not isinstance(error, UnavailableError) and attempt >= tries:
                self._refuse(chunk, error)

    def _wait(self, missing: set[int], answer: Answer) -> None:
        reader = _Reader(answer, missing, time.monotonic())
        reader.timer = self._loop.call_later(self._bounds.read_deadline_s, self._late, reader)
        for chunk in missing:
            self._waiting.setdefault(chunk, []).append(reader)
        asked = sorted(chunk for chunk in missing if not self._flights.claimed(chunk))
        for run in runs(asked, self._bounds.run):
            self._flights.claim(*run)
            self._spawn(self._insist(*run, {}))

    def _landed(self, chunk: int, error: Exception | None) -> None:
        if error is not None:
            self._log("a chunk could not be taken", chunk, error)
            return
        for reader in self._waiting.pop(chunk, ()):
            reader.missing.discard(chunk)
            if not reader.missing:
                self._finish(reader, 0)
        if self.cache.complete:
            self._on_complete()

    def _late(self, reader: _Reader) -> None:
        error = UnavailableError(f"not within {self._bounds.read_deadline_s:g} s")
        self._withdraw(reader, min(reader.missing), error)

    def _refuse(self, chunk: int, error: Exception) -> None:
        for reader in list(self._waiting.get(chunk, ())):
            self._withdraw(reader, chunk, error)

    def _withdraw(self, reader: _Reader, chunk: int, error: Exception) -> None:
        for missing in reader.missing:
            left = self._waiting[missing]
            left.remove(reader)
            if not left:
                del self._waiting[missing]
        self.counts.errors += 1
        self._log("a read was refused", chunk, error)
        self._finish(reader, errno.EIO)

    def _log(self, what: str, chunk: int, error: Exception) -> None:
        """Now and then: a program that reads again and again must not fill the log."""
        now = time.monotonic()
        if now >= self._log_after:
            self._log_after = now + LOG_EVERY_S
            _log.error(what, layer=self.cache.layer.digest, chunk=chunk, errors=self.counts.errors, error=str(error))

    def _finish(self, reader: _Reader, refusal: int) -> None:
        reader.timer.cancel()
        self.counts.waited(time.monotonic() - reader.since)
        faults.point("loading.event.answering")
        try:
            reader.answer(refusal)
        except OSError as error:
            # those that are answered after it must not wait for ever
            _log.error("a reader was not answered", layer=self.cache.layer.digest, error=str(error))


def _worst(failed: dict[int, Exception]) -> Exception:
    """What to tell: damage before absence, and a full disk before both, as one of ours."""
    for error in failed.values():
        if isinstance(error, OSError) and not isinstance(error, DSecError):
            return CapacityError(f"cannot write a layer's data: {error.strerror}")
    damaged = [error for error in failed.values() if not isinstance(error, UnavailableError)]
    return (damaged or list(failed.values()))[0]


def _in_order(chunks: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Runs of neighbours, each where its first chunk stands."""
    left = dict.fromkeys(chunks)
    found = []
    for chunk in chunks:
        if chunk not in left:
            continue
        count = 0
        while count < most and chunk + count in left:
            del left[chunk + count]
            count += 1
        found.append((chunk, count))
    return found
