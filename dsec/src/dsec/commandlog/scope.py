"""One scope in memory: the last numbers of its tracks, the steps that run, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from dsec.journal import Journal, Statement
from libdsec.protocol.errors import DSecError, InternalError
from libdsec.protocol.steps import MAX_RECORDED_OUTPUT

from . import tables
from .blobs import Blobs
from .bounds import INLINE_BYTES, ROW_BYTES
from .clock import Clock
from .entry import (
    Ended,
    Failed,
    Fate,
    OpenStep,
    Outcome,
    RecordedStep,
    Then,
    not_replayable,
    not_run,
    unknown,
)

MAX_TRACKS = 4096
"""Last numbers that are kept in memory; of more the database is asked again."""

COUNT_STEPS = 64
COUNT_BYTES = 1024 * 1024
"""After so much the scope's row is written: a start reads the steps since then, and does not know the bytes."""

TOUCH_S = 60.0
"""A log that has ended is kept from the last step that began in it, as exact as this."""

WRITE_AT_ONCE = 512 * 1024
"""Bytes of output that are written to the file without a thread: the page cache takes them in a fraction of a
millisecond."""

VALUES = frozenset({"file.list", "file.watch"})
"""Methods each of whose DATA on stream 2 is a value of its own."""

_encode = msgspec.msgpack.Encoder().encode


class Desk(NamedTuple):
    """What all scopes write with."""

    journal: Journal
    blobs: Blobs
    clock: Clock
    rest: Callable[[Scope], None]
    """Told of a scope that has ended when nothing in it runs any more."""
    kept: Callable[[OpenStep], None]
    """Told of a step whose row could not be taken out."""


class Scope:
    def __init__(self, row: tables.ScopeRow, desk: Desk, *, stored: bool) -> None:
        """`stored`: it has a row."""
        self.id = row.id
        self.name = row.name
        self.kind = row.kind
        self.created_at = row.created_at
        self.ended_at = row.ended_at
        self.bytes = row.bytes
        self.last_seq = 0
        self.stored = stored
        self.mark = 0
        """The journal's, when it came to rest."""
        self.followers: list[Callable[[int], None]] = []
        """Told the seq of each step that has ended."""
        self.open: dict[tuple[str, int], OpenStep] = {}
        self._journal = desk.journal
        self._blobs = desk.blobs
        self._clock = desk.clock
        self._rest = desk.rest
        self._kept = desk.kept
        self._tracks: dict[str, int] = {}
        self._fresh = not stored
        """A track that is not in memory has no steps."""
        self._blob_end: int | None = None
        self._uncounted_steps = 0
        self._uncounted_bytes = 0
        if stored:
            self._load(row.floor)

    def _load(self, floor: int) -> None:
        ((last,),) = self._journal.query("SELECT coalesce(max(seq), 0) FROM log_steps WHERE scope = ?", (self.id,))
        # above those that were withdrawn too: a step below the floor would not be found when it runs
        self.last_seq = max(last, floor - 1)
        for seq, track, n, run, tried, method, sandbox, digest, began_at, opaque in self._journal.query(
            tables.SELECT_RUNNING, (self.id, floor)
        ):
            self.open[track, n] = OpenStep(
                self,
                seq=seq,
                track=track,
                n=n,
                run=run,
                tried=tried,
                method=method,
                sandbox=sandbox,
                digest=digest,
                began_at=began_at,
                opaque=opaque,
                begun=True,
            )

    def last(self, track: str) -> int:
        """The highest number of the track."""
        found = self._tracks.get(track)
        if found is not None:
            return found
        last = 0
        if not self._fresh:
            ((last,),) = self._journal.query(
                "SELECT coalesce(max(n), 0) FROM log_steps WHERE scope = ? AND track = ?", (self.id, track)
            )
        self._remember(track, last)
        return last

    def begin(self, entry: OpenStep, principal: str, request: bytes) -> None:
        """Write the row of a new step."""
        row = (
            *(self.id, entry.seq, entry.track, entry.n, entry.run, entry.method, entry.sandbox, principal),
            *(entry.began_at, b"", entry.opaque, request),
        )
        self.last_seq = max(self.last_seq, entry.seq)
        self._remember(entry.track, max(self.last(entry.track), entry.n))
        self._count(ROW_BYTES + len(request))
        self._open(entry, [(tables.INSERT_STEP, row)])

    def begin_again(self, entry: OpenStep, principal: str, request: bytes) -> None:
        """Let the row of a known step say that it runs. Where the row was to be taken out it may be another request."""
        row = (
            *(entry.run, entry.tried, entry.sandbox, principal, entry.began_at, entry.opaque),
            *(entry.method, entry.digest, request, self.id, entry.seq),
        )
        self._open(entry, [(tables.RERUN_STEP, row), (tables.LOWER_FLOOR, (entry.seq, self.id))])

    def end(
        self,
        entry: OpenStep,
        state: Ended,
        answer: bytes,
        stdout: Sequence[bytes],
        stderr: Sequence[bytes],
        input_digest: bytes,
        opaque: str,
        then: Then,
        failed: Failed,
    ) -> None:
        """See `OpenStep.end`."""
        out_size, err_size = sum(map(len, stdout)), sum(map(len, stderr))
        size = out_size + err_size
        if not opaque and size > MAX_RECORDED_OUTPUT:
            opaque = f"it gave {size} bytes of output, of which {MAX_RECORDED_OUTPUT} are recorded at most"
        kept = not opaque and state != "unknown"
        inline = kept and size <= INLINE_BYTES
        out, err = (b"".join(stdout), b"".join(stderr)) if inline else (None, None)
        cuts = _encode([len(piece) for piece in stdout if piece]) if kept and entry.method in VALUES else None
        now = self._clock.now()

        def write(blob_at: int | None) -> None:
            row = (
                *(tables.STATES.index(state), now, entry.digest, opaque, answer, out_size, err_size),
                *(blob_at, cuts, input_digest, out, err, self.id, entry.seq),
            )
            self._count(len(answer) + (size if kept else 0))
            self._write_end(entry, row, then, failed, state, opaque)

        if inline or not kept:
            write(None)
        else:
            self._append((*stdout, *stderr), size, write, lambda error: self._lost(entry, error, failed))

    def _write_end(
        self, entry: OpenStep, row: Sequence[object], then: Then, failed: Failed, state: Ended, opaque: str
    ) -> None:
        def done() -> None:
            self._forget(entry)
            then()
            if entry.heard:
                entry.tell(self._outcome(entry, state, opaque))
            for follower in tuple(self.followers):
                follower(entry.seq)

        statements: list[Statement] = [(tables.END_STEP, row)]
        if self.ended_at is not None or self._uncounted_steps >= COUNT_STEPS or self._uncounted_bytes >= COUNT_BYTES:
            statements.append(self._counted(entry))
        self._journal.submit_all(statements, done, lambda error: self._lost(entry, error, failed), ahead=True)

    def withdraw(self, entry: OpenStep, then: Then) -> None:
        """See `OpenStep.withdraw`."""

        def done() -> None:
            self._ask_again(entry.track)
            self._forget(entry)
            then()
            entry.tell(not_run(self.name, entry.track, entry.n, entry.method))

        def kept(_error: DSecError) -> None:  # the journal has said it in the log
            entry.fate = Fate.WITHDRAWN
            self._kept(entry)
            then()
            entry.tell(not_run(self.name, entry.track, entry.n, entry.method))

        if entry.tried:
            self._journal.submit(tables.UNKNOWN_AGAIN, (entry.tried - 1, self.id, entry.seq), done, kept, ahead=True)
        else:
            self._journal.submit(tables.DELETE_STEP, (self.id, entry.seq), done, kept, ahead=True)

    def recorded(self, track: str, n: int) -> RecordedStep | None:
        """A step that can be answered again; None: it runs, is not there, or has no outcome or output."""
        rows = self._journal.query(tables.SELECT_RECORDED, (self.id, track, n))
        row = tables.RecordedRow(*rows[0]) if rows else None
        if row is None or row.state in (tables.RUNNING, tables.UNKNOWN) or row.opaque:
            return None
        return self.as_recorded(row)

    def as_recorded(self, row: tables.RecordedRow) -> RecordedStep:
        """Of a row that was read.

        :raises OutcomeUnknownError | UnsupportedOperationError: it cannot be answered again.
        """
        if row.state in (tables.UNKNOWN, tables.RUNNING):
            raise unknown(self.name, row.track, row.n, row.method, "nobody was there to hear its answer")
        if row.opaque:
            raise not_replayable(self.name, row.track, row.n, row.method, row.opaque)
        return RecordedStep(
            scope=self.name,
            scope_id=self.id,
            seq=row.seq,
            track=row.track,
            n=row.n,
            method=row.method,
            state=tables.STATES[row.state],
            answer=row.answer,
            stdout_size=row.stdout_size,
            stderr_size=row.stderr_size,
            stdout=row.stdout,
            stderr=row.stderr,
            blob_at=row.blob_at or 0,
            cuts=() if row.cuts is None else msgspec.msgpack.decode(row.cuts, type=tuple[int, ...]),
        )

    def request(self, seq: int) -> bytes:
        """Of a step that is written down."""
        rows = self._journal.query("SELECT request FROM log_steps WHERE scope = ? AND seq = ?", (self.id, seq))
        return rows[0][0] if rows else b""

    def counted(self, least: int = 1) -> None:
        """Write what is counted in memory, where the row lacks so many bytes."""
        if self.stored and self._uncounted_bytes >= least:
            self._journal.submit(*self._counted(None))

    def floor(self, ending: OpenStep | None = None) -> int:
        """No step below it runs, once `ending` has ended."""
        return min((entry.seq for entry in self.open.values() if entry is not ending), default=self.last_seq + 1)

    def _open(self, entry: OpenStep, statements: list[Statement]) -> None:
        at = (entry.track, entry.n)
        before = self.open.get(at)
        self.open[at] = entry
        if not self.stored:
            statements.insert(0, (tables.INSERT_SCOPE, (self.id, self.name, self.kind, self.created_at)))
        if self.ended_at is not None and entry.began_at - self.ended_at > TOUCH_S:
            self.ended_at = entry.began_at
            statements.append((tables.TOUCH_SCOPE, (self.ended_at, self.id)))

        def done() -> None:
            self.stored = True
            entry.begin_done(None)

        def failed(error: DSecError) -> None:
            if self.open.get(at) is entry:
                del self.open[at]
                if before is not None:
                    self.open[at] = before  # its row is as it was
            self._ask_again(entry.track)
            entry.begin_done(error)

        self._journal.submit_all(statements, done, failed, ahead=True)

    def _forget(self, entry: OpenStep) -> None:
        if self.open.get((entry.track, entry.n)) is entry:
            del self.open[entry.track, entry.n]
        if self.ended_at is not None and not self.open:
            self._rest(self)

    def _lost(self, entry: OpenStep, error: DSecError, failed: Failed) -> None:
        entry.fate = Fate.LOST
        failed(error)
        entry.tell(unknown(self.name, entry.track, entry.n, entry.method, f"its outcome was not recorded: {error}"))

    def _outcome(self, entry: OpenStep, state: Ended, opaque: str) -> Outcome:
        if state == "unknown":
            return unknown(self.name, entry.track, entry.n, entry.method, "nobody was there to hear its answer")
        if opaque:
            return not_replayable(self.name, entry.track, entry.n, entry.method, opaque)
        try:
            found = self.recorded(entry.track, entry.n)
        except DSecError as error:
            return error
        return found or InternalError("cannot find a step that was just recorded", scope=self.name, seq=entry.seq)

    def _append(self, pieces: Sequence[bytes], size: int, then: Callable[[int], None], failed: Failed) -> None:
        """Write to the scope's file, in a thread where it takes long; `then` is told where."""
        if self._blob_end is None:
            self._blob_end = self._blobs.size(self.id)
        at = self._blob_end
        self._blob_end = at + size
        if size <= WRITE_AT_ONCE and not self._blobs.durable:
            try:
                self._blobs.write(self.id, at, pieces)
            except DSecError as error:
                failed(error)
            else:
                then(at)
            return

        def written(write: asyncio.Future[None]) -> None:
            try:
                write.result()
                then(at)
            except DSecError as error:
                failed(error)

        self._journal.loop.run_in_executor(None, self._blobs.write, self.id, at, pieces).add_done_callback(written)

    def _ask_again(self, track: str) -> None:
        """A number has gone: what the track's last is now, the database says."""
        self._tracks.pop(track, None)
        self._fresh = False

    def _remember(self, track: str, last: int) -> None:
        if len(self._tracks) >= MAX_TRACKS and track not in self._tracks:
            self._tracks.clear()
            self._fresh = False
        self._tracks[track] = last

    def _count(self, size: int) -> None:
        self.bytes += size
        self._uncounted_bytes += size
        self._uncounted_steps += 1

    def _counted(self, ending: OpenStep | None) -> Statement:
        self._uncounted_steps = self._uncounted_bytes = 0
        return tables.COUNT_SCOPE, (self.bytes, self.floor(ending), self.id)
