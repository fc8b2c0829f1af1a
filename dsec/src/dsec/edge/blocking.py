"""Blocking work of the store, which may take minutes and tells how far it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from libdsec.protocol.environment import BuildProgress

PROGRESS_S: Final = 0.1
"""Between two tellings of the same stage: each costs its caller and the loop time that a short work has not."""

Progress = Callable[[BuildProgress], None]

_T = TypeVar("_T")


class CanceledError(Exception):
    """Ends the work's thread from inside its progress; goes nowhere else."""


def telling(progress: Progress) -> Progress:
    """What a thread calls with its news: of them `progress` hears on the running event loop, of each stage's first and
    of others every `PROGRESS_S`."""
    loop = asyncio.get_running_loop()
    stage, due = "", 0.0

    def tell(news: BuildProgress) -> None:
        nonlocal stage, due
        now = time.monotonic()
        if news.stage != stage or now >= due:
            stage, due = news.stage, now + PROGRESS_S
            loop.call_soon_threadsafe(progress, news)

    return tell


async def in_thread(work: Callable[[Progress], _T], progress: Progress) -> _T:
    """What `work` returns. What it tells its argument comes to `progress` on the event loop.

    After a cancel that argument raises: the work ends there, takes away what it has made, and only then this does.
    """
    # a thread of its own: those that the loop has are few, and for what is over soon
    thread = ThreadPoolExecutor(1, "dsec-image")
    tell = telling(progress)
    canceled = False

    def step(news: BuildProgress) -> None:
        if canceled:
            raise CanceledError
        tell(news)

    working = asyncio.get_running_loop().run_in_executor(thread, work, step)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        canceled = True
        try:
            await working
        except CanceledError:
            pass  # as asked for
        raise
    finally:
        thread.shutdown(wait=False)
