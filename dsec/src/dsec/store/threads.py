"""Work in threads that a cancel does not leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(executor: Executor | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`work` in a thread of `executor`, or of the loop's own. After a cancel, too, it has ended when this does, so
    that what it uses can be taken away: it should take no more than moments."""
    running = asyncio.get_running_loop().run_in_executor(executor, lambda: work(*args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await ended(running)
        raise


async def ended(running: asyncio.Future[Any]) -> None:
    """Wait until it has ended, however often the waiting is canceled: for whoever is being canceled already. Its own
    error counts as seen."""
    while not running.done():
        try:
            await asyncio.wait((running,))
        except asyncio.CancelledError:
            continue
    if not running.cancelled():
        running.exception()
