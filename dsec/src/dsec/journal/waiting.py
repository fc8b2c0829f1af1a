"""What was written ahead and told, until it is committed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence

import structlog

from libdsec.protocol.errors import CapacityError, DSecError

from .ahead import Ahead, Statement, commit
from .failure import as_error

_log = structlog.get_logger("dsec.journal")

COMMIT_AFTER_S = 0.02
"""So long a unit waits at most."""

COMMIT_UNITS = 128
"""So many are committed without waiting longer: that takes a millisecond."""

STUCK_S = 1.0
"""Between tries when the disk is full."""


class Waiting:
    """Called on the loop's thread, which is the only one that uses the connection."""

    def __init__(
        self,
        path: str,
        database: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        committed: Callable[[DSecError | None, int], None],
    ) -> None:
        """`committed` is told of each try, and of how many units.

        :raises OSError: there is no room for the file.
        """
        self._path = path
        self._database = database
        self._loop = loop
        self._committed = committed
        self._ahead = Ahead(path, database)
        self._units: list[Sequence[Statement]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._stuck = False
        """The disk is full: the units that wait, or the reserve, have no room. Nothing more is written ahead."""
        self.held = False
        """Commits wait for the checkpoint that brings the WAL to its beginning."""

    @property
    def mark(self) -> int:
        """Of the last unit so far."""
        return self._ahead.number

    def take(self, statements: Sequence[Statement]) -> bool:
        """Write a unit ahead. False: it is to be committed at once, behind those that wait."""
        if self._stuck:
            return False
        try:
            if not self._ahead.append(statements):
                return False
        except OSError as error:
            _log.warning("not written ahead", path=self._path, error=str(error))
            return False
        except (TypeError, ValueError, OverflowError):
            return False  # SQLite says what is wrong with it
        self._units.append(statements)
        if len(self._units) >= COMMIT_UNITS and not self.held:
            self.commit()
        else:
            self._later(COMMIT_AFTER_S)
        return True

    def commit(self, mark: int | None = None) -> DSecError | None:
        """Commit what waits, if anything does up to the mark. None: nothing waits any more."""
        if not self._units or (mark is not None and mark <= self.mark - len(self._units)):
            return None
        problem = self._try()
        if isinstance(problem, CapacityError) and not self._stuck:
            self._ahead.give_back()
            problem = self._try()
        self._committed(problem, len(self._units))
        self._stuck = problem is not None
        if problem is None:
            self._units = []
            self._ahead.begin_again()
            self._reserve()
        else:
            self._later(STUCK_S)
        return problem

    def close(self) -> None:
        """What still waits is committed by the next one."""
        self.commit()
        if self._timer is not None:
            self._timer.cancel()
        self._ahead.close()

    def _try(self) -> DSecError | None:
        try:
            commit(self._database, self._units, self._ahead.number)
        except Exception as error:
            return as_error(error, self._path)
        return None

    def _reserve(self) -> None:
        try:
            self._ahead.reserve()
        except OSError:
            self._stuck = True
            self._later(STUCK_S)

    def _later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._in_time)

    def _in_time(self) -> None:
        self._timer = None
        if self.held:
            self._later(COMMIT_AFTER_S)
        elif self._units:
            self.commit()
        elif self._stuck:
            self._stuck = False
            self._reserve()
