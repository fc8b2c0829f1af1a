"""Layers that are being filled: opened once, however many mount, fetch or read them; closed when nobody does."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError

import structlog

from dsec.linux import KernelError
from dsec.store.records import LayerRecord
from libdsec.protocol.errors import CapacityError, DSecError, UnavailableError

from .base import ChunkSource
from .bounds import Bounds
from .cache import DataCache
from .counts import Counts
from .filling import Filling
from .looping import LoopThread
from .precontent import PreContent
from .turns import Turns

MAX_NOTES = 64
"""Of reads that the loop has not heard of."""
PROVOKE_S = 10.0
"""For an event of our own to come back to us."""

_log = structlog.get_logger("dsec.loading")


class Opened:
    """A layer whose data is not all here."""

    def __init__(self, cache: DataCache, counts: Counts) -> None:
        self.cache, self.counts = cache, counts
        self.filling: Filling
        self.whole: Future[None] = Future()
        """Done when all of it is here and on the disk, or it was let go of before."""
        self.closed = False
        self._noted: tuple[int, int] | None = None
        """The chunks of the last read of what was here: most reads are of the same ones, and say nothing new."""
        self._notes: deque[tuple[int, int]] = deque(maxlen=MAX_NOTES)

    def note(self, loop: asyncio.AbstractEventLoop, chunks: tuple[int, int]) -> None:
        """In the thread that reads events: chunks that are here were read. `filling` hears of it later, or, of the
        oldest of more than it can follow, never."""
        if self._noted == chunks:
            return
        self._noted = chunks
        self._notes.append(chunks)
        if len(self._notes) == 1:
            loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        while self._notes:
            self.filling.passed(*self._notes.popleft())

    def let_go(self) -> None:
        """Whoever waits for all of it is told that it will not come."""
        if not self.whole.done():
            digest = self.cache.layer.digest
            self.whole.set_exception(UnavailableError(f"cannot fetch layer {digest}: it was let go of meanwhile"))


class OpenedLayers:
    """Opening and closing take milliseconds, and are done in threads, one at a time a layer."""

    def __init__(
        self,
        thread: LoopThread,
        bounds: Bounds,
        open_source: Callable[[LayerRecord], ChunkSource],
        in_background: Callable[[Callable[[], None]], object],
    ) -> None:
        self._thread, self._bounds, self._open_source = thread, bounds, open_source
        self._in_background = in_background
        self._turns = Turns(at_once=bounds.at_once, a_layer=bounds.a_layer, ahead=bounds.ahead)
        self._books = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._opened: dict[str, Opened] = {}
        self._provoked: dict[str, Future[int]] = {}
        self.events: PreContent | None = None

    def get(self, digest: str) -> Opened | None:
        return self._opened.get(digest)

    def lock(self, digest: str) -> threading.Lock:
        """Held while a layer's files are opened, closed or taken away."""
        with self._books:
            return self._locks.setdefault(digest, threading.Lock())

    def open(self, layer: LayerRecord) -> Opened:
        """With the layer's lock held. One that is complete already is finished.

        :raises DSecError: it cannot be.
        """
        opened = self._opened.get(layer.digest)
        if opened is not None:
            if opened.cache.is_current():
                return opened
            self._close(self._opened.pop(layer.digest))
        source = self._open_source(layer)
        cache = DataCache.open(layer)
        try:
            cache.writer = self._writer(layer)
            wrong = cache.check_after_boot()
            if wrong:
                _log.warning("chunks had not reached the disk", layer=layer.digest, chunks=wrong)
            opened = Opened(cache, Counts(layer.directory))
            opened.filling = self._thread.submit(self._make(opened, source)).result()
        except OSError as error:
            cache.close()
            raise CapacityError(f"cannot open the data of layer {layer.digest}: {error}") from error
        except BaseException:
            cache.close()
            raise
        self._opened[layer.digest] = opened
        if cache.complete:
            self._finish(opened, locked=True)
        return opened

    async def _make(self, opened: Opened, source: ChunkSource) -> Filling:
        return Filling(
            opened.cache,
            source,
            turns=self._turns,
            bounds=self._bounds,
            counts=opened.counts,
            spawn=self._thread.spawn,
            on_complete=lambda: self._complete(opened),
        )

    def _writer(self, layer: LayerRecord) -> int:
        """A descriptor of the data file that raises no events: one of an event, where events are raised."""
        if self.events is None or not layer.data_bytes:
            return os.open(layer.data, os.O_RDWR | os.O_CLOEXEC)
        provoked: Future[int] = Future()
        self._provoked[layer.digest] = provoked
        self.events.mark(layer)
        try:
            reader = os.open(layer.data, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.pread(reader, 1, 0)
            finally:
                os.close(reader)
            return provoked.result(PROVOKE_S)
        except LateError:
            raise KernelError(errno.EIO, "provoke an event on", layer.data) from None
        finally:
            del self._provoked[layer.digest]

    def provokes(self) -> bool:
        """Whether somebody waits for an event of our own."""
        return bool(self._provoked)

    def take_provoked(self, digest: str, descriptor: int, pid: int) -> bool:
        """In the thread that reads events: whether this one is what `_writer` waits for."""
        provoked = self._provoked.get(digest) if pid == os.getpid() else None
        if provoked is None or provoked.done() or self.events is None:
            return False
        self.events.answer(descriptor, keep=True)
        provoked.set_result(descriptor)
        return True

    def close_layer(self, layer: LayerRecord) -> None:
        """With the layer's lock held. No event is raised for it any more: nobody may have it mounted."""
        opened = self._opened.pop(layer.digest, None)
        if self.events is not None:
            self.events.unmark(layer)
        if opened is not None and not opened.closed:
            self._close(opened)

    def close(self) -> None:
        """All, without an answer to whoever waits, and with marks left for the next process. The loop has ended."""
        for opened in self._opened.values():
            self._save(opened)
            opened.cache.close()
            opened.let_go()
        self._opened.clear()

    def save(self, digest: str) -> None:
        """What is worth keeping though this process may die."""
        opened = self._opened.get(digest)
        if opened is not None:
            self._save(opened)

    def _complete(self, opened: Opened) -> None:
        self._in_background(lambda: self._finish(opened))

    def _finish(self, opened: Opened, *, locked: bool = False) -> None:
        """All has come: say so for good, and raise no events any more."""
        layer = opened.cache.layer
        lock = None if locked else self.lock(layer.digest)
        if lock is not None:
            lock.acquire()
        try:
            # a check may have found damage since the last chunk came
            if opened.closed or opened.whole.done() or not opened.cache.complete:
                return
            opened.cache.finish()
            if self.events is not None:
                self.events.unmark(layer)
            self._opened.pop(layer.digest, None)
            self._close(opened, whole=True)
            _log.info("layer is whole", layer=layer.digest, bytes=layer.data_bytes)
        except (OSError, DSecError) as error:
            _log.error("a complete layer could not be made whole", layer=layer.digest, error=str(error))
            failure = CapacityError(f"cannot finish layer {layer.digest}: {error}")
            if not opened.whole.done():
                opened.whole.set_exception(failure)
        finally:
            if lock is not None:
                lock.release()

    def _close(self, opened: Opened, *, whole: bool = False) -> None:
        opened.closed = True
        self._save(opened)
        self._thread.submit(opened.filling.close()).result()
        opened.cache.close()
        if whole:
            opened.whole.set_result(None)
        else:
            opened.let_go()

    def _save(self, opened: Opened) -> None:
        try:
            opened.counts.save()
            opened.filling.trace.save()
        except OSError as error:
            _log.warning("what was counted is lost", layer=opened.cache.layer.digest, error=str(error))
