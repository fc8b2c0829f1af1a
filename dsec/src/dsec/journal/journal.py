"""Group commit on the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import structlog

from libdsec.protocol.errors import DSecError, UnavailableError

from .ahead import Statement
from .checkpoint import CHECKPOINT_AFTER, Checkpointer
from .connections import Readers, open_writer
from .failure import as_error, is_statement
from .schema import Schema
from .waiting import Waiting

T = TypeVar("T")

_log = structlog.get_logger("dsec.journal")

Then = Callable[[], None]
Failed = Callable[[DSecError], None]


class _Unit(NamedTuple):
    """Statements that are written together or not at all."""

    statements: tuple[Statement, ...]
    then: Then | None
    failed: Failed | None
    ahead: bool


class Journal:
    """One file. Everything but the `work` of `read` is called on the loop's thread."""

    def __init__(
        self, path: str, loop: asyncio.AbstractEventLoop, schemas: Sequence[Schema] = (), *, durable: bool = False
    ) -> None:
        """:raises UnavailableError: the file is damaged, or a newer version wrote it; says what to do.
        :raises CapacityError: it cannot be written."""
        self._path = path
        self.loop = loop
        self.durable = durable
        self._connection = open_writer(path, schemas, durable)
        self._readers = Readers(path)
        self._writer = ThreadPoolExecutor(1, "journal-write") if durable else None
        self._waiting = None if durable else self._open_ahead()
        self._checkpointer = Checkpointer(path, loop, self._hold)
        self._mutex = threading.Lock()
        """Held while the connection has a batch."""
        self._pending: list[_Unit] = []
        self._told: deque[tuple[_Unit, DSecError | None]] = deque()
        """Units whose fate is known and not yet told, in order."""
        self._scheduled = False
        self._busy = False
        """A batch is in the thread."""
        self._held = False
        self._written = 0
        self._failing: str | None = None
        self._closed = False
        self._before_close: list[Then] = []

    @property
    def path(self) -> str:
        return self._path

    def submit(
        self,
        sql: str,
        parameters: Sequence[Any],
        then: Then | None = None,
        failed: Failed | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        """Run a statement in this turn's batch. `then` after its commit, or `failed` when it could not be made.

        `ahead`: write it ahead, and call `then` before this returns, unless something waits to be committed before
        it. Only for statements that SQLite takes whatever the tables hold.

        :raises UnavailableError: the journal is closed.
        """
        self.submit_all(((sql, parameters),), then, failed, ahead=ahead)

    def submit_all(
        self,
        statements: Sequence[Statement],
        then: Then | None = None,
        failed: Failed | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        """Several statements, of which all are committed or none. As `submit`. Without statements: `then` after
        what was submitted before, of which any may have been refused by itself."""
        unit = _Unit(tuple(statements), then, failed, ahead)
        waiting = self._waiting if ahead and not (self._pending or self._told or self._closed) else None
        if waiting is not None and waiting.take(unit.statements):
            self._tell_one(unit, None)
        else:
            self._add(unit)

    def flush_now(self) -> None:
        """Write what was submitted and call the callbacks, before this returns."""
        self._commit_pending()
        self._tell()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows, as of all that was submitted before. Commits first; callbacks come in a later turn.

        :raises UnavailableError | CapacityError | InternalError: the file cannot be read, or what is written ahead
            cannot be committed.
        """
        if self._pending:
            self._commit_pending()
            self.loop.call_soon(self._tell)
        self.commit_to(self.mark)
        return self._select(sql, parameters)

    def look(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows, as of what was committed: cheaper than `query`, for those who know that nothing they ask for waits."""
        if self._busy:
            # the batch in the thread may be waiting for the disk
            return self._readers.look(sql, parameters)
        return self._select(sql, parameters)

    @property
    def mark(self) -> int:
        """Of all that is written ahead so far."""
        return 0 if self._waiting is None else self._waiting.mark

    def commit_to(self, mark: int) -> None:
        """Have what is written ahead committed, if that has not been up to the mark: `look` sees it then.

        :raises DSecError: the disk is full. It is tried again by itself.
        """
        problem = None if self._waiting is None else self._waiting.commit(mark)
        if problem is not None:
            raise problem

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a thread, on a read-only connection within one snapshot of what was committed.

        :raises DeadlineExceededError: it took longer than READ_TIMEOUT_S.
        :raises UnavailableError | CapacityError | InternalError: the file cannot be read, or what is written ahead
            cannot be committed.
        """
        if self._closed:
            raise self._is_closed()
        self.commit_to(self.mark)
        return await self._readers.run(self.loop, work)

    def before_close(self, callback: Then) -> None:
        """Call it when the journal is about to close: it may submit a last time."""
        self._before_close.append(callback)

    async def close(self) -> None:
        """Commit, tell, checkpoint, close. Idempotent."""
        if self._closed:
            return
        callbacks, self._before_close = self._before_close, []
        for callback in callbacks:
            callback()
        while self._pending or self._told or self._busy:
            self.flush_now()
            await asyncio.sleep(0)
        self._closed = True
        if self._waiting is not None:
            self._waiting.close()
        await self._checkpointer.close()
        if self._writer is not None:
            await self.loop.run_in_executor(None, self._writer.shutdown)
        await self._readers.close(self.loop)
        # the last one to close copies what is left of the WAL: it may have to be synced
        await self.loop.run_in_executor(None, self._connection.close)

    def _open_ahead(self) -> Waiting | None:
        try:
            return Waiting(self._path, self._connection, self.loop, self._ahead_committed)
        except OSError as error:
            _log.warning("each unit is committed by itself", path=self._path, error=str(error))
            return None

    def _ahead_committed(self, problem: DSecError | None, units: int) -> None:
        self._say_whether_written(problem)
        if problem is None:
            self._written += units
            self._checkpoint_if_due()

    def _add(self, unit: _Unit) -> None:
        if self._closed:
            raise self._is_closed()
        self._pending.append(unit)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if not self._pending or self._held or self._busy:
            return
        if self._writer is None:
            self.flush_now()
            return
        units, self._pending = self._pending, []
        self._busy = True
        self._writer.submit(self._in_thread, units)

    def _in_thread(self, units: list[_Unit]) -> None:
        with self._mutex:
            self._told.extend(self._write(units))
        self.loop.call_soon_threadsafe(self._thread_done)

    def _thread_done(self) -> None:
        self._busy = False
        self._checkpoint_if_due()
        self._schedule()
        self._tell()

    def _hold(self, held: bool) -> None:
        """Collect without committing, or go on."""
        self._held = held
        if self._waiting is not None:
            self._waiting.held = held
        self._schedule()

    def _schedule(self) -> None:
        if self._pending and not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def _checkpoint_if_due(self) -> None:
        if self._written >= CHECKPOINT_AFTER and not self._closed:
            self._written = 0
            self._checkpointer.start()

    def _commit_pending(self) -> None:
        # with a batch in the thread this waits for it
        with self._mutex:
            units, self._pending = self._pending, []
            if self._waiting is not None:
                units = self._write_ahead(units, self._waiting)
            if units:
                self._told.extend(self._write(units))
        self._checkpoint_if_due()

    def _write_ahead(self, units: list[_Unit], waiting: Waiting) -> list[_Unit]:
        """Those that are to be committed at once: the first that cannot wait, and all behind it."""
        for index, unit in enumerate(units):
            if not unit.ahead or not waiting.take(unit.statements):
                problem = waiting.commit()
                if problem is None:
                    return units[index:]
                self._told.extend((late, problem) for late in units[index:])
                break
            self._told.append((unit, None))
        return []

    def _write(self, units: list[_Unit]) -> list[tuple[_Unit, DSecError | None]]:
        try:
            self._apply(units)
        except Exception as error:
            if len(units) > 1 and is_statement(error):
                return [outcome for unit in units for outcome in self._write([unit])]
            failure = as_error(error, self._path)
            self._say_whether_written(failure)
            return [(unit, failure) for unit in units]
        self._say_whether_written(None)
        return [(unit, None) for unit in units]

    def _say_whether_written(self, failure: DSecError | None) -> None:
        """Into the log when it begins and when it is over: commits are too many to tell of each."""
        code = None if failure is None else failure.code
        if code == self._failing:
            return
        self._failing = code
        if failure is not None:
            _log.error("journal not written", error=str(failure))
        else:
            _log.info("journal is written again", path=self._path)

    def _apply(self, units: list[_Unit]) -> None:
        """:raises Exception: what SQLite or its binding refuses; nothing is written then."""
        connection = self._connection
        self._written += len(units)
        if len(units) == 1 and len(units[0].statements) == 1:
            connection.execute(*units[0].statements[0])  # a transaction by itself
            return
        try:
            connection.execute("BEGIN IMMEDIATE")
            rows: list[Sequence[Any]] = []
            current = ""
            for unit in units:
                for sql, parameters in unit.statements:
                    if sql != current:
                        self._run(current, rows)
                        current, rows = sql, []
                    rows.append(parameters)
            self._run(current, rows)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _run(self, sql: str, rows: list[Sequence[Any]]) -> None:
        if len(rows) == 1:
            self._connection.execute(sql, rows[0])
        elif rows:
            self._connection.executemany(sql, rows)

    def _tell(self) -> None:
        told = self._told
        while told:
            self._tell_one(*told.popleft())

    def _tell_one(self, unit: _Unit, error: DSecError | None) -> None:
        try:
            if error is None:
                if unit.then is not None:
                    unit.then()
            elif unit.failed is not None:
                unit.failed(error)
            else:
                _log.error("not written, and nobody waits for it", statements=unit.statements[:1], error=str(error))
        except Exception as raised:
            self.loop.call_exception_handler({"message": "a journal callback failed", "exception": raised})

    def _select(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._closed:
            raise self._is_closed()
        try:
            with self._mutex:
                return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise as_error(error, self._path) from error

    def _is_closed(self) -> UnavailableError:
        return UnavailableError(f"cannot use the journal {self._path}: it is closed", path=self._path)
