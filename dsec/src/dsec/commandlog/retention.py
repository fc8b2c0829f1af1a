"""Letting go of logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from dsec.journal import Journal
from libdsec.protocol.errors import DSecError

from .blobs import Blobs
from .bounds import Bounds

BATCH = 100
"""Rows deleted by one commit: other commits come in between."""

_log = structlog.get_logger("dsec.commandlog")


class _Doomed(NamedTuple):
    id: int
    name: str | None
    """None: its deletion was begun before."""
    bytes: int


class Retention:
    """Deletes the logs of scopes that ended long ago, or of too many. A deletion that is cut off goes on with the
    next one: the first thing that goes is the name."""

    def __init__(self, journal: Journal, blobs: Blobs, bounds: Bounds, loop: asyncio.AbstractEventLoop) -> None:
        self._journal = journal
        self._blobs = blobs
        self._bounds = bounds
        self._loop = loop
        self._busy = False

    async def prune(self, now: float, release: Callable[[int], bool], below: int) -> int:
        """How many were deleted. `release` lets a scope go from memory; False: it is in use. `below`: files of
        unknown scopes with a smaller id are nobody's."""
        if self._busy:
            return 0
        self._busy = True
        try:
            pruned = 0
            for doomed in self._doomed(now):
                if not release(doomed.id):
                    continue
                await self._delete(doomed)
                pruned += 1
            await self._sweep(below)
        except DSecError as error:
            _log.warning("logs not deleted; tried again later", error=str(error))
            return 0
        finally:
            self._busy = False
        return pruned

    def _doomed(self, now: float) -> list[_Doomed]:
        begun = self._journal.query("SELECT id, NULL, bytes FROM log_scopes WHERE name IS NULL")
        ((total,),) = self._journal.query("SELECT coalesce(sum(bytes), 0) FROM log_scopes WHERE name IS NOT NULL")
        ended = self._journal.query(
            "SELECT id, name, bytes, ended_at FROM log_scopes WHERE name IS NOT NULL AND ended_at IS NOT NULL "
            "ORDER BY ended_at"
        )
        doomed = [_Doomed(*row) for row in begun]
        for scope_id, name, size, ended_at in ended:
            if ended_at >= now - self._bounds.keep_s and total <= self._bounds.total_bytes:
                break
            doomed.append(_Doomed(scope_id, name, size))
            total -= size
        return doomed

    async def _delete(self, doomed: _Doomed) -> None:
        if doomed.name is not None:
            # in the file at once: a step that comes now begins a new log of that name
            self._journal.submit("UPDATE log_scopes SET name = NULL WHERE id = ?", (doomed.id,))
        last = -1
        while last:
            rows = self._journal.query(
                "SELECT seq FROM log_steps WHERE scope = ? ORDER BY seq LIMIT 1 OFFSET ?", (doomed.id, BATCH - 1)
            )
            last = rows[0][0] if rows else 0
            if last:
                await self._commit("DELETE FROM log_steps WHERE scope = ? AND seq <= ?", (doomed.id, last))
        await self._commit("DELETE FROM log_steps WHERE scope = ?", (doomed.id,))
        await self._loop.run_in_executor(None, self._blobs.remove, doomed.id)
        await self._commit("DELETE FROM log_scopes WHERE id = ?", (doomed.id,))

    async def _commit(self, sql: str, parameters: tuple[object, ...]) -> None:
        done: asyncio.Future[None] = self._loop.create_future()

        def then() -> None:
            if not done.done():
                done.set_result(None)

        def failed(error: DSecError) -> None:
            if not done.done():
                done.set_exception(error)

        self._journal.submit(sql, parameters, then, failed)
        await done

    async def _sweep(self, below: int) -> None:
        """Files that belong to no scope: a crash came between a file and its row, or between a row and its file."""
        found = await self._loop.run_in_executor(None, lambda: list(self._blobs.scopes()))
        known = {scope_id for (scope_id,) in self._journal.query("SELECT id FROM log_scopes")}
        for scope_id in found:
            if scope_id < below and scope_id not in known:
                await self._loop.run_in_executor(None, self._blobs.remove, scope_id)
