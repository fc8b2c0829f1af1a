"""Steps as they are read: rows become entries, entries become frames."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from libdsec.protocol.steps import INLINE_OUTPUT, OutputRecord, Step

from . import tables
from .entry import digest_of_row

MAX_FRAME = 131_072
"""Bytes of one array; a sender's credit need not ever be for more."""

READ_AT_ONCE = 512 * 1024
"""Bytes of entries read by one visit of a thread."""

_HEAD = 3
_LARGEST_ARRAY = 65_535
_encode = msgspec.msgpack.Encoder().encode
_NIL = msgspec.Raw(b"\xc0")

_COLUMNS = (
    "SELECT seq, track, n, method, digest, state, began_at, sandbox, ended_at, {request}, answer, stdout_size, "
    f"stderr_size, CASE WHEN stdout_size + stderr_size <= {INLINE_OUTPUT} THEN stdout END, "
    f"CASE WHEN stdout_size + stderr_size <= {INLINE_OUTPUT} THEN stderr END, input_digest, opaque, principal "
    "FROM log_steps WHERE scope = ? "
)


class Filter(NamedTuple):
    scope_id: int
    track: str | None = None
    sandbox: str | None = None
    requests: bool = True

    def sql(self) -> tuple[str, list[Any]]:
        """Its condition beside the scope, and the parameters, the scope first."""
        condition, parameters = "", [self.scope_id]
        for column, value in (("track", self.track), ("sandbox", self.sandbox)):
            if value is not None:
                condition += f"AND {column} = ? "
                parameters.append(value)  # type: ignore[arg-type]
        return condition, parameters


class Page(NamedTuple):
    frames: list[bytes]
    """MessagePack arrays of `Step`."""
    steps: int
    last: int
    """The highest seq that was read."""
    ended: frozenset[int]
    """Of these, the seq of those that had ended."""
    more: bool


def read_page(database: sqlite3.Connection, wanted: Filter, after: int, limit: int) -> Page:
    """Entries above `after` in the order of seq, at most `limit` of them (0: as many as one read takes)."""
    condition, parameters = wanted.sql()
    sql = _columns(wanted.requests) + condition + "AND seq > ? ORDER BY seq LIMIT ?"
    return _page(database.execute(sql, (*parameters, after, limit or -1)), limit)


def read_some(database: sqlite3.Connection, wanted: Filter, seqs: Sequence[int]) -> Page:
    """Those of these seqs that the filter lets through and that are there; a few hundred at most."""
    condition, parameters = wanted.sql()
    marks = ", ".join("?" * len(seqs))
    sql = _columns(wanted.requests) + condition + f"AND seq IN ({marks}) ORDER BY seq"
    return _page(database.execute(sql, (*parameters, *seqs)), 0, everything=True)


def read_one(database: sqlite3.Connection, scope_id: int, track: str, n: int) -> Step | None:
    sql = _columns(True) + "AND track = ? AND n = ?"
    row = database.execute(sql, (scope_id, track, n)).fetchone()
    return None if row is None else _step(row)


def before_last(database: sqlite3.Connection, wanted: Filter, count: int) -> int:
    """Above which seq the last `count` entries lie."""
    condition, parameters = wanted.sql()
    sql = f"SELECT seq FROM log_steps WHERE scope = ? {condition} ORDER BY seq DESC LIMIT 1 OFFSET ?"
    row = database.execute(sql, (*parameters, count)).fetchone()
    return 0 if row is None else int(row[0])


def _page(rows: Iterable[tuple[Any, ...]], limit: int, *, everything: bool = False) -> Page:
    frames: list[bytes] = []
    entries: list[bytes] = []
    ended: list[int] = []
    size, total, count, last, more = _HEAD, 0, 0, 0, False
    for row in rows:
        if total >= READ_AT_ONCE and not everything:
            more = True
            break
        entry = _entry(row)
        if size + len(entry) > MAX_FRAME or len(entries) == _LARGEST_ARRAY:
            frames.append(_array(entries))
            entries, size = [], _HEAD
        entries.append(entry)
        size += len(entry)
        total += len(entry)
        count += 1
        last = row[0]
        if row[5] != tables.RUNNING:
            ended.append(last)
    if entries:
        frames.append(_array(entries))
    return Page(frames, count, last, frozenset(ended), more and count != limit)


def _columns(requests: bool) -> str:
    # the digest of one that runs is taken of its request
    return _COLUMNS.format(request="request" if requests else "CASE WHEN digest = x'' THEN request END")


def _entry(row: tuple[Any, ...]) -> bytes:
    """An entry that fits into a frame: the request, then the answer, are left out where it would not."""
    entry = _encode(_step(row))
    if len(entry) + _HEAD > MAX_FRAME:
        entry = _encode(_step((*row[:9], None, *row[10:])))
    if len(entry) + _HEAD > MAX_FRAME:
        entry = _encode(_step((*row[:9], None, None, *row[11:])))
    return entry


def _step(row: tuple[Any, ...]) -> Step:
    seq, track, n, method, digest, state, began_at, sandbox, ended_at, request, answer = row[:11]
    out_size, err_size, out, err, input_digest, opaque, principal = row[11:]
    return Step(
        seq,
        track,
        n,
        method,
        digest or digest_of_row(method, request or b""),
        tables.STATES[state],
        began_at,
        sandbox,
        ended_at,
        msgspec.Raw(request) if request else _NIL,
        msgspec.Raw(answer) if answer else _NIL,
        _output(out_size, out),
        _output(err_size, err),
        input_digest or b"",
        opaque,
        principal,
    )


_NOTHING = OutputRecord()


def _output(size: int, data: bytes | None) -> OutputRecord:
    return OutputRecord(size, data or None) if size else _NOTHING


def _array(entries: list[bytes]) -> bytes:
    return b"\xdc" + len(entries).to_bytes(2, "big") + b"".join(entries)
