"""Units that are written down before their commit: a file beside the database, and how it is read after a crash.

A commit of SQLite writes whole pages, twice for a step; appending the same statements to a file that is in the page
cache costs a tenth of it, and survives the end of this process in the same way. They are committed soon after, many
together, and the file begins again from its start.

Format, little-endian: MAGIC, the database's identity, a number drawn when the file was opened (8 + 8 + 4 bytes); then
records, from byte 64: number (8), length of the unit (4), CRC-32 of these three and of the unit (4), and the unit, a
MessagePack list of [SQL, parameters]. Numbers leave nothing out. What is left of an earlier round has lower numbers, or
is cut by a later record, or is of another opening: where a record does not fit its place, reading ends.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import structlog

from .failure import is_statement
from .schema import Schema

_log = structlog.get_logger("dsec.journal")

Statement = tuple[str, Sequence[Any]]

SCHEMA = Schema(
    "journal",
    (
        (
            # applied: the number of the last unit of the file beside that is committed
            "CREATE TABLE journal_ahead (one INTEGER PRIMARY KEY CHECK (one = 1), identity INTEGER NOT NULL, "
            "applied INTEGER NOT NULL) STRICT",
            "INSERT INTO journal_ahead VALUES (1, random(), 0)",
        ),
    ),
)
_APPLIED = "UPDATE journal_ahead SET applied = ?"

ROOM = 1024 * 1024
"""Bytes of units at most that wait for their commit."""

RESERVE = 4 * 1024 * 1024
"""Bytes behind those, for nothing but to be given back when the disk is full: what was acknowledged can be committed
then."""

_MAGIC = b"DSECAHD\1"
_TOP = struct.Struct("<8sqI")
_RECORD = struct.Struct("<QII")
_FIRST = 64

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[str, list[Any]]]).decode


class Ahead:
    """The file, while it is written."""

    def __init__(self, path: str, database: sqlite3.Connection) -> None:
        """Of a database to which all that the file holds is committed.

        :raises OSError: the disk has no room for it.
        """
        identity, applied = database.execute("SELECT identity, applied FROM journal_ahead").fetchone()
        self.number: int = applied
        self._path = path_of(path)
        self._at = _FIRST
        self._reserved = False
        self._drawn = secrets.randbits(32)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(self._file, 0o600)
            self.reserve()
            os.pwrite(self._file, _TOP.pack(_MAGIC, identity, self._drawn), 0)
        except BaseException:
            os.close(self._file)
            raise

    def reserve(self) -> None:
        """Have the room and the reserve on the disk. Idempotent."""
        if not self._reserved:
            os.posix_fallocate(self._file, 0, _FIRST + ROOM + RESERVE)
            self._reserved = True

    def give_back(self) -> None:
        """Leave the reserve to whoever comes first; see that it is the database."""
        os.ftruncate(self._file, _FIRST + ROOM)
        self._reserved = False

    def append(self, statements: Sequence[Statement]) -> bool:
        """Write a unit down. False: there is no room for it before what waits is committed.

        :raises Exception: it holds a value that cannot be written, or the disk refuses; nothing was appended.
        """
        payload = _encode(statements)
        size = len(payload)
        at, number = self._at, self.number + 1
        if at + _RECORD.size + size > _FIRST + ROOM:
            return False
        record = _RECORD.pack(number, size, _check(self._drawn, number, size, payload)) + payload
        if os.pwrite(self._file, record, at) != len(record):
            raise OSError(f"{self._path} was not written whole")
        self._at = at + len(record)
        self.number = number
        return True

    def begin_again(self) -> None:
        """All of it is committed."""
        self._at = _FIRST

    def close(self) -> None:
        os.close(self._file)


def path_of(database: str) -> str:
    return f"{database}-ahead"


def commit_left(database: sqlite3.Connection, path: str) -> None:
    """Commit the units that an earlier process had written down and not committed.

    :raises sqlite3.Error: the disk is full, also after the reserve was given back.
    """
    left = list(_left(database, path))
    if not left:
        return
    units = [statements for _, statements in left]
    try:
        commit(database, units, left[-1][0])
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_FULL:
            raise
        os.truncate(path_of(path), _FIRST + ROOM)
        commit(database, units, left[-1][0])
    _log.info("committed what an earlier process had written ahead", path=path, units=len(units))


def commit(database: sqlite3.Connection, units: Sequence[Sequence[Statement]], number: int) -> None:
    """Commit units, `number` that of the last one, in one transaction: all of them or none. One that SQLite refuses is
    a mistake of ours that must cost no other: it is left out and said.

    :raises sqlite3.Error: the file cannot be written.
    """
    try:
        _in_transaction(database, units, number, _run)
    except Exception as error:
        if not is_statement(error):
            raise
        _in_transaction(database, units, number, _run_or_say)


def _in_transaction(
    database: sqlite3.Connection,
    units: Sequence[Sequence[Statement]],
    number: int,
    run: Callable[[sqlite3.Connection, Sequence[Statement]], None],
) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        for statements in units:
            run(database, statements)
        database.execute(_APPLIED, (number,))
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _run(database: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    for sql, parameters in statements:
        database.execute(sql, parameters)


def _run_or_say(database: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    database.execute("SAVEPOINT unit")
    try:
        _run(database, statements)
    except Exception as error:
        if not is_statement(error):
            raise
        database.execute("ROLLBACK TO unit")
        _log.error("what was written ahead is refused, and lost", statements=list(statements), error=str(error))
    database.execute("RELEASE unit")


def _left(database: sqlite3.Connection, path: str) -> Iterator[tuple[int, list[Statement]]]:
    """Number and statements of what is not committed."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'journal_ahead'").fetchall():
        return  # a new database, or one of before there was such a file
    try:
        with open(path_of(path), "rb") as file:
            data = memoryview(file.read(_FIRST + ROOM))
    except FileNotFoundError:
        return
    ((identity, applied),) = database.execute("SELECT identity, applied FROM journal_ahead").fetchall()
    if len(data) < _FIRST:
        return
    magic, owner, drawn = _TOP.unpack_from(data)
    if (magic, owner) != (_MAGIC, identity):
        return  # another database's: the one that was here has been moved away
    before = None
    for number, payload in _records(data, drawn):
        if before is None and number > applied + 1:
            # power was lost: of what had been committed before them the disk has less than of these
            _log.warning("ignored what was written ahead: what came before it is lost", path=path, first=number)
            return
        if before is not None and number != before + 1:
            return
        before = number
        if number > applied:
            yield number, _decode(payload)  # type: ignore[misc]


def _records(data: memoryview, drawn: int) -> Iterator[tuple[int, memoryview]]:
    at = _FIRST
    while at + _RECORD.size <= len(data):
        number, size, check = _RECORD.unpack_from(data, at)
        payload = data[at + _RECORD.size : at + _RECORD.size + size]
        if not number or len(payload) != size or check != _check(drawn, number, size, payload):
            return
        yield number, payload
        at += _RECORD.size + size


def _check(drawn: int, number: int, size: int, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, drawn + number + size & 0xFFFFFFFF)
