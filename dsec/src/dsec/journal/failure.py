"""What SQLite says went wrong, as one of our errors."""

from __future__ import annotations

import sqlite3

import structlog

from libdsec.protocol.errors import CapacityError, DSecError, InternalError, UnavailableError

_log = structlog.get_logger("dsec.journal")

_DISK = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def is_statement(error: BaseException) -> bool:
    """Whether the fault is a statement's own, so that others of its batch can be written."""
    return _code(error) not in _DISK | _DAMAGE | {sqlite3.SQLITE_BUSY}


def as_error(error: BaseException, path: str) -> DSecError:
    """What those who wait for a commit are told."""
    if isinstance(error, DSecError):
        return error
    code = _code(error)
    if code in _DISK:
        return CapacityError(f"cannot write the journal {path}: {error}; make room on its disk", path=path)
    if code in _DAMAGE:
        return damaged(path, error)
    if code == sqlite3.SQLITE_BUSY:
        return UnavailableError(f"cannot write the journal {path}: another process holds it ({error})", path=path)
    _log.error("a statement failed", path=path, exc_info=error)
    return InternalError(f"cannot write the journal {path}: {type(error).__name__}: {error}", path=path)


def damaged(path: str, error: BaseException) -> UnavailableError:
    return UnavailableError(
        f"cannot use the journal {path}: {error}; move it and its -wal, -shm and -ahead files away to start without it "
        "(command logs are lost then, and sandboxes that run are ended), or put a copy back",
        path=path,
    )


def _code(error: BaseException) -> int | None:
    """The primary result code."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None
