"""Connections to the file: the one that writes, and those that read in threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote

from libdsec.protocol.errors import CapacityError, DeadlineExceededError, DSecError

from .ahead import SCHEMA as AHEAD
from .ahead import commit_left
from .failure import as_error, damaged
from .schema import Schema, migrate

T = TypeVar("T")

BUSY_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
READERS = 2

_PAGE = 2048
"""Bytes. Each commit writes whole pages: a step's two cost 36 µs with these, 48 with the usual 4096, and 43 % less is
written; smaller ones save little more and a row with some output no longer fits."""

_WAL_KEPT = 16 * 1024 * 1024
"""Bytes of the WAL's file that are kept for the next round when it begins again."""


def open_writer(path: str, schemas: Sequence[Schema], durable: bool) -> sqlite3.Connection:
    """The file is root's alone, whatever the umask and its directory's mode: what programs were given and said is in
    it.

    :raises UnavailableError | CapacityError: see `Journal`.
    """
    _require_whole(path)
    _make_private(path)
    try:
        database = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            database.execute(f"PRAGMA page_size = {_PAGE}")  # of a new file; an old one keeps its own
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            database.execute("PRAGMA wal_autocheckpoint = 0")
            database.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT}")
            commit_left(database, path)  # as the tables were when it was written
            migrate(database, path, (AHEAD, *schemas))
        except BaseException:
            database.close()
            raise
        return database
    except sqlite3.Error as error:
        raise as_error(error, path) from error


def _require_whole(path: str) -> None:
    """Of a file that is empty or gone SQLite throws the WAL away, in which all may be that was written lately.

    :raises UnavailableError: the WAL is there and the file is not.
    """
    sizes = []
    for name in (path, f"{path}-wal"):
        try:
            sizes.append(os.stat(name).st_size)
        except OSError:
            sizes.append(0)
    if sizes[1] and not sizes[0]:
        raise damaged(path, FileNotFoundError("it is empty or gone, and its -wal is not"))


def _make_private(path: str) -> None:
    """SQLite gives the files beside it the mode of this one."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for name in (path, f"{path}-wal", f"{path}-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.chmod(name, 0o600)
    except OSError as error:
        raise CapacityError(f"cannot write the journal {path}: {error.strerror}", path=path) from error


class Readers:
    """Threads that read, each on a connection that is used again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(READERS, "journal-read")
        self._idle: list[sqlite3.Connection] = []

    async def run(self, loop: asyncio.AbstractEventLoop, work: Callable[[sqlite3.Connection], T]) -> T:
        """See `Journal.read`."""
        used: list[sqlite3.Connection] = []
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await loop.run_in_executor(self._threads, self._work, work, used)
        except TimeoutError:
            raise DeadlineExceededError(
                f"cannot read the journal {self._path}: it took longer than {READ_TIMEOUT_S:g} s", path=self._path
            ) from None
        finally:
            # still in use only after a timeout or cancel: nobody waits for it any more
            for database in used:
                with contextlib.suppress(sqlite3.ProgrammingError):  # it was closed meanwhile
                    database.interrupt()

    def look(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """On the caller's thread. :raises DSecError: the file cannot be read."""
        try:
            database = self._take()
            try:
                return database.execute(sql, parameters).fetchall()
            finally:
                self._idle.append(database)
        except sqlite3.Error as error:
            raise as_error(error, self._path) from error

    async def close(self, loop: asyncio.AbstractEventLoop) -> None:
        await loop.run_in_executor(None, self._threads.shutdown)
        while self._idle:
            self._idle.pop().close()

    def _work(self, work: Callable[[sqlite3.Connection], T], used: list[sqlite3.Connection]) -> T:
        try:
            database = self._take()
            used.append(database)
            try:
                database.execute("BEGIN")
                result = work(database)
            except BaseException:
                used.clear()
                database.close()
                raise
            database.execute("COMMIT")
            used.clear()
            self._idle.append(database)
            return result
        except DSecError:
            raise
        except sqlite3.Error as error:
            raise as_error(error, self._path) from error

    def _take(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return sqlite3.connect(
                f"file:{quote(self._path)}?mode=ro",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )
