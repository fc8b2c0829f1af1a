"""Checkpoints beside the commits."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from .connections import BUSY_TIMEOUT_S
from .failure import as_error

_log = structlog.get_logger("dsec.journal")

CHECKPOINT_AFTER = 1000
"""Units committed since the last one began: some megabytes of WAL."""

LARGE_WAL = 16_384
"""Frames (64 MiB): commits are held for the moment that brings the WAL to its beginning again."""


class Checkpointer:
    """At most one checkpoint at a time."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop, hold: Callable[[bool], None]) -> None:
        """`hold` stops commits and lets them go on, on the loop."""
        self._path = path
        self._loop = loop
        self._hold = hold
        self._thread = ThreadPoolExecutor(1, "journal-checkpoint")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin one, unless one runs."""
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._checkpoint(), name="journal checkpoint")

    async def close(self) -> None:
        if self._task is not None:
            await self._task
        await self._loop.run_in_executor(None, self._thread.shutdown)

    async def _checkpoint(self) -> None:
        try:
            frames = await self._run("PASSIVE")
            if frames < LARGE_WAL:
                return
            self._hold(True)
            try:
                await self._run("TRUNCATE")
            finally:
                self._hold(False)
        except sqlite3.Error as error:
            # tried again after the next CHECKPOINT_AFTER
            _log.warning("checkpoint failed", error=str(as_error(error, self._path)))

    async def _run(self, mode: str) -> int:
        return await self._loop.run_in_executor(self._thread, self._copy, mode)

    def _copy(self, mode: str) -> int:
        """Frames the WAL has now."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as database:
            (_busy, frames, _copied) = database.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        return int(frames)
