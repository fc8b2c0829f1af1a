"""Blocking work of the store, which may take minutes and tells how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from libdsec.protocol.environment import BuildProgress

Progress = Callable[[BuildProgress], None]

_T = TypeVar("_T")


class CanceledError(Exception):
    """Ends the work's thread from inside its progress; goes nowhere else."""


async def in_thread(work: Callable[[Progress], _T], progress: Progress) -> _T:
    """What `work` returns. What it tells its argument comes to `progress` on the event loop.

    After a cancel that argument raises: the work ends there, takes away what it has made, and only then this does.
    """
    loop = asyncio.get_running_loop()
    # a thread of its own: those that the loop has are few, and for what is over soon
    thread = ThreadPoolExecutor(1, "dsec-image")
    canceled = False

    def step(news: BuildProgress) -> None:
        if canceled:
            raise CanceledError
        loop.call_soon_threadsafe(progress, news)

    working = loop.run_in_executor(thread, work, step)
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
