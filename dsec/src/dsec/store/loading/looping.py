"""An event loop in a thread of its own: what reads of sandboxes wait for is not to wait for the node's other work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import structlog
import uvloop

T = TypeVar("T")

_log = structlog.get_logger("dsec.loading")


class LoopThread:
    """Runs from its making to `close`, which cancels what still runs."""

    def __init__(self, name: str) -> None:
        self._running: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self.loop = self._running.result()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """From any other thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """On the loop. A bug in one task is logged, and ends no other."""
        return self._tasks.create_task(_guarded(work))

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._over = asyncio.Event()
        running: set[asyncio.Task[Any]] = set()
        async with asyncio.TaskGroup() as self._tasks:
            self._running.set_result(asyncio.get_running_loop())
            await self._over.wait()
            running = asyncio.all_tasks() - {asyncio.current_task()}
            for task in running:
                task.cancel()


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:
        _log.error("a task of the loader failed", error=str(error), exc_info=error)
