"""Blocking work of the store, which may take minutes and tells how far it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from dsec.store.threads import ended
from libdsec.protocol.environment import BuildProgress

PROGRESS_S: Final = 0.1
"""Between two tellings. Each costs the work and the loop time, so that what is over sooner tells nothing."""

Progress = Callable[[BuildProgress], None]

_T = TypeVar("_T")


class CanceledError(Exception):
    """Ends the work's thread from inside its news; goes nowhere else."""


class News:
    """What the thread of some work tells of it: the latest of each stage, in the order they were told, comes to
    `progress`, on the running event loop, every `PROGRESS_S` and, of work that took longer than that, at the end.
    `progress` must not raise.

    A context manager around the work, on the loop; `tell` and `check` are for the thread.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._latest: dict[str, BuildProgress] = {}
        self._told = False
        self.canceled = False
        """Once true, whoever tells something is ended by that."""

    def tell(self, news: BuildProgress) -> None:
        """:raises CanceledError: nobody wants the work any more."""
        self.check()
        with self._lock:
            self._latest.pop(news.stage, None)
            self._latest[news.stage] = news

    def check(self) -> None:
        """:raises CanceledError: as `tell`."""
        if self.canceled:
            raise CanceledError

    def __enter__(self) -> News:
        self._timer = self._loop.call_later(PROGRESS_S, self._tick)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._told:
            self._pass_on()

    def _tick(self) -> None:
        self._told = True
        self._timer = self._loop.call_later(PROGRESS_S, self._tick)
        self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            latest, self._latest = self._latest, {}
        for news in latest.values():
            self._progress(news)


async def in_thread(work: Callable[[Progress], _T], progress: Progress) -> _T:
    """What `work` returns. What it tells its argument comes to `progress` on the event loop, see `News`.

    After a cancel that argument raises: the work ends there, takes away what it has made, and only then this does.
    """
    # a thread of its own: those that the loop has are few, and for what is over soon
    thread = ThreadPoolExecutor(1, "dsec-image")
    with News(progress) as news:
        working = asyncio.get_running_loop().run_in_executor(thread, work, news.tell)
        try:
            await asyncio.wait((working,))
        finally:
            news.canceled = True
            await ended(working)
            thread.shutdown(wait=False)
    return working.result()
