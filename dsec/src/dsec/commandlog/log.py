"""The log of all scopes of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from dsec.journal import Journal, Statement
from libdsec.protocol.errors import DSecError, InvalidArgumentError, QuotaExceededError
from libdsec.protocol.ids import is_sandbox_id
from libdsec.protocol.steps import OTHER, StepTag, check_tag, details, request_digest, step_name

from . import tables
from .blobs import Blobs
from .bounds import ROW_BYTES, Bounds
from .clock import Clock
from .divergence import diverged
from .entry import Begun, Fate, Joined, OpenStep, Recorded, RecordedStep, digest_of_row, unknown
from .retention import Retention
from .scope import Desk, Scope

_DRAWN_A_RUN = 2**32
_LARGEST = 2**63 - 1

MAX_RESTING = 1024
"""Scopes that have ended and are kept in memory."""

COUNT_FOR_PRUNING = 64 * 1024
"""Bytes that a scope's row may lack when it is asked which logs are too many."""

STOP_SLACK = 1000
"""Steps beyond the bound, for stopping a sandbox whose log is full."""


class Asked(NamedTuple):
    """A call that comes to the log."""

    sandbox: str
    method: str
    args: msgspec.Struct
    request: bytes
    principal: str
    opaque: str


class ScopeInfo(NamedTuple):
    name: str
    kind: str
    """`sandbox` or `rollout`."""
    steps: int
    created_at: float
    ended_at: float | None


class CommandLog:
    """On the loop's thread, as the journal is."""

    def __init__(self, journal: Journal, directory: str, clock: Clock, *, bounds: Bounds | None = None) -> None:
        """`directory`: where files of large outputs lie."""
        self.journal = journal
        self._clock = clock
        self._bounds = bounds or Bounds()
        self._blobs = Blobs(directory, durable=journal.durable)
        self._kept: list[OpenStep] = []
        """Those that surely did not run, and whose rows could not be taken out."""
        self._desk = Desk(journal, self._blobs, clock, self._rest, self._kept.append)
        self._scopes: dict[str, Scope] = {}
        self._by_id: dict[int, Scope] = {}
        self._resting: dict[int, Scope] = {}
        """Those that have ended and in which nothing runs, the longest at rest first."""
        ((drawn,),) = journal.query("SELECT drawn FROM log_epoch")
        # by the clock too: on a full disk the next statement fails, and the node starts all the same
        self._drawn: int = max(drawn + _DRAWN_A_RUN, int(clock.now() * 1e6))
        """Numbers that were never used before, of scopes and of runs of steps."""
        self._started = self._drawn
        journal.submit("UPDATE log_epoch SET drawn = ?", (self._drawn,))
        self._retention = Retention(journal, self._blobs, self._bounds, journal.loop)
        journal.before_close(self._write_counts)

    def begin(
        self,
        *,
        scope: str,
        tag: StepTag | None,
        sandbox: str,
        method: str,
        args: msgspec.Struct,
        request: bytes,
        principal: str,
        opaque: str = "",
    ) -> Begun | Recorded | Joined:
        """What a call is: new (its row is on the way; send nothing before `OpenStep.when_begun`), recorded, or
        running on behalf of another call.

        `request` is the arguments' map as it came; `opaque` says in words why the step will not be replayable.
        A `tag` of None is a step of track `other` that the log numbers, as it does where `n` is 0.

        :raises InvalidArgumentError: the tag cannot be, or leaves numbers of its track out.
        :raises ReplayDivergedError: another request is recorded at the step.
        :raises OutcomeUnknownError: it is recorded without an outcome, and the tag does not say `again`.
        :raises UnsupportedOperationError: it is recorded and cannot be answered again.
        :raises QuotaExceededError: the scope has as many steps or bytes as it may.
        """
        if tag is not None:
            check_tag(tag)
        found = self._scope(scope)
        asked = Asked(sandbox, method, args, request, principal, opaque)
        track, n = (tag.track, tag.n) if tag is not None else (OTHER, 0)
        last = found.last(track)
        if 0 < n <= last:
            known = self._known(found, track, n, asked, tag is not None and tag.again)
            if known is not None:
                return known
        elif n > last + 1:
            raise InvalidArgumentError(
                f"cannot take step {step_name(track, n)} of {scope}: the last one there is {last}, and the numbers of "
                "a track leave nothing out",
                field="step.n",
                last=last,
                **details(scope, track, n),
            )
        self._check_bounds(found, asked)
        entry = self._entry(found, found.last_seq + 1, track, n or last + 1, 0, asked)
        found.begin(entry, principal, request)
        return Begun(entry)

    def open_scope(self, name: str, kind: str) -> ScopeInfo:
        """Know a scope from now on; one that had ended goes on. `kind`: `sandbox` or `rollout`."""
        scope = self._scope(name, kind)
        statements: list[Statement] = []
        if not scope.stored:
            statements.append((tables.INSERT_SCOPE, (scope.id, name, kind, scope.created_at)))
        if scope.ended_at is not None:
            statements.append((tables.END_SCOPE, (None, scope.bytes, scope.floor(), scope.id)))
            scope.ended_at = None
            self._resting.pop(scope.id, None)

        def done() -> None:
            scope.stored = True

        if statements:
            self.journal.submit_all(statements, done, ahead=True)
        return self._info(scope)

    def end_scope(self, name: str) -> None:
        """No more steps are expected; the log is kept as long as `Bounds` says. Unknown names are fine."""
        scope = self._find(name)
        if scope is not None:
            scope.ended_at = self._clock.now()
            row = (scope.ended_at, scope.bytes, scope.floor(), scope.id)
            self.journal.submit(tables.END_SCOPE, row, lambda: self._rest(scope), ahead=True)

    def count(self, name: str) -> int:
        """Steps of a scope so far; 0 of one that is not known."""
        scope = self._scopes.get(name)
        if scope is not None:
            return scope.last_seq
        rows = self.journal.look(tables.COUNT_STEPS, (name,))
        return rows[0][0] if rows else 0

    def info(self, name: str) -> ScopeInfo | None:
        scope = self._find(name)
        return None if scope is None else self._info(scope)

    def scopes(self, *, ended: bool = False) -> list[tuple[str, str]]:
        """Name and kind of every scope that has not ended, or of all."""
        condition = "name IS NOT NULL" if ended else "name IS NOT NULL AND ended_at IS NULL"
        rows = self.journal.query(f"SELECT name, kind FROM log_scopes WHERE {condition} ORDER BY name")
        return [(name, kind) for name, kind in rows]

    def running(self) -> list[OpenStep]:
        """Every step of every scope that runs; after a start, those that ran when the earlier server ended."""
        names = [name for (name,) in self.journal.query(tables.SELECT_WITH_RUNNING)]
        return [step for name in names for step in self.running_steps(name)]

    def running_steps(self, scope: str) -> list[OpenStep]:
        """Steps that run, or whose end could not be written, by seq."""
        found = self._find(scope)
        return [] if found is None else sorted(found.open.values(), key=lambda entry: entry.seq)

    def resume(self, scope: str, seq: int) -> OpenStep | None:
        """A step that runs; None: none does."""
        return next((entry for entry in self.running_steps(scope) if entry.seq == seq), None)

    def by_key(self, key: str, sandbox: str) -> OpenStep | None:
        """The step that an init of `sandbox` names. None: no step of that sandbox runs under this key."""
        parts = key.split(":")
        if len(parts) != 3 or len(key) > 64 or not all(part.isascii() and part.isdecimal() for part in parts):
            return None
        scope_id, seq, run = map(int, parts)
        if scope_id > _LARGEST:
            return None
        scope = self._by_id.get(scope_id) or self._load("id = ?", scope_id)
        if scope is None:
            return None
        for entry in scope.open.values():
            if entry.seq == seq and entry.run == run and entry.sandbox == sandbox and not entry.ended:
                return entry
        return None

    def subscribe(self, scope: str, callback: Callable[[int], None]) -> Callable[[], None]:
        """Call with the seq of each step of the scope after it has ended. Returns what ends the subscription."""
        found = self._scope(scope)
        found.followers.append(callback)

        def unsubscribe() -> None:
            if callback in found.followers:
                found.followers.remove(callback)
            if not found.stored and not found.open and not found.followers:
                self._drop(found)

        return unsubscribe

    def recorded(self, scope: str, track: str, n: int) -> RecordedStep | None:
        """A step that has an answer with its output; None: it has none, or none yet, or is not there."""
        found = self._find(scope)
        return None if found is None else found.recorded(track, n)

    def scope_id(self, name: str) -> int | None:
        """Under which rows and files of the scope lie."""
        found = self._find(name)
        return None if found is None else found.id

    async def read_blob(self, scope_id: int, offset: int, size: int) -> bytes:
        """Bytes of a large output. :raises IntegrityError: they are not there."""
        return await self.journal.loop.run_in_executor(None, self._blobs.read, scope_id, offset, size)

    def mend(self) -> None:
        """Now and then: take out the rows that a full disk kept."""
        kept = self._kept.copy()
        self._kept.clear()
        for entry in kept:
            entry.withdraw_again()

    async def prune(self, now: float) -> int:
        """Delete logs that were kept long enough, or longest of too many, and files of none. How many logs went."""
        self._write_counts(COUNT_FOR_PRUNING)
        return await self._retention.prune(now, self._release, self._started)

    def _release(self, scope_id: int) -> bool:
        scope = self._by_id.get(scope_id)
        if scope is None:
            return True
        if scope.ended_at is None or scope.open or scope.followers:
            return False
        self._drop(scope)
        return True

    def _known(self, scope: Scope, track: str, n: int, asked: Asked, again: bool) -> Begun | Recorded | Joined | None:
        """What a number up to the track's last is; None: it is free."""
        entry = scope.open.get((track, n))
        if entry is not None:
            if entry.fate is Fate.WITHDRAWN and not entry.tried:
                return self._run_again(scope, entry.seq, track, n, 0, asked)
            self._compare(scope, track, n, entry.digest, asked)
            if entry.fate is Fate.OPEN:
                return Joined(entry)
            if not again:
                raise unknown(scope.name, track, n, entry.method, "its outcome could not be recorded")
            return self._run_again(scope, entry.seq, track, n, entry.tried + (entry.fate is Fate.LOST), asked)
        rows = self.journal.query(tables.SELECT_RECORDED, (scope.id, track, n))
        if not rows:
            return None
        row = tables.RecordedRow(*rows[0])
        self._compare(scope, track, n, row.digest or digest_of_row(row.method, scope.request(row.seq)), asked)
        if again and row.state in (tables.UNKNOWN, tables.RUNNING):
            return self._run_again(scope, row.seq, track, n, row.tried + 1, asked)
        return Recorded(scope.as_recorded(row))

    def _run_again(self, scope: Scope, seq: int, track: str, n: int, tried: int, asked: Asked) -> Begun:
        entry = self._entry(scope, seq, track, n, tried, asked)
        scope.begin_again(entry, asked.principal, asked.request)
        return Begun(entry)

    def _compare(self, scope: Scope, track: str, n: int, digest: bytes, asked: Asked) -> None:
        """:raises ReplayDivergedError: it is another request."""
        if digest == request_digest(asked.method, asked.args):
            return
        rows = self.journal.query(
            "SELECT method, request FROM log_steps WHERE scope = ? AND track = ? AND n = ?", (scope.id, track, n)
        )
        expected = (rows[0][0], rows[0][1]) if rows else ("a call that is not written yet", b"")
        raise diverged(scope.name, track, n, expected, (asked.method, asked.request))

    def _check_bounds(self, scope: Scope, asked: Asked) -> None:
        bounds = self._bounds
        if asked.method == "sandbox.stop" and scope.last_seq < bounds.steps + STOP_SLACK:
            return
        if scope.last_seq >= bounds.steps:
            bound, limit, has = "steps", bounds.steps, scope.last_seq
        elif scope.bytes + len(asked.request) + ROW_BYTES > bounds.bytes:
            bound, limit, has = "bytes", bounds.bytes, scope.bytes
        else:
            return
        raise QuotaExceededError(
            f"cannot record another step of {scope.name}: its log has {has} {bound}, the limit is {limit}; go on in "
            "another rollout or sandbox",
            scope=scope.name,
            bound=bound,
            limit=limit,
        )

    def _entry(self, scope: Scope, seq: int, track: str, n: int, tried: int, asked: Asked) -> OpenStep:
        return OpenStep(
            scope,
            seq=seq,
            track=track,
            n=n,
            run=self._draw(),
            tried=tried,
            method=asked.method,
            sandbox=asked.sandbox,
            args=asked.args,
            began_at=self._clock.now(),
            opaque=asked.opaque,
        )

    def _draw(self) -> int:
        self._drawn += 1
        return self._drawn

    def _scope(self, name: str, kind: str | None = None) -> Scope:
        """A scope, known from now on."""
        found = self._find(name)
        if found is None:
            kind = kind or ("sandbox" if is_sandbox_id(name) else "rollout")
            row = tables.ScopeRow(self._draw(), name, kind, self._clock.now(), None, 0, 1)
            found = self._keep(Scope(row, self._desk, stored=False))
        return found

    def _find(self, name: str) -> Scope | None:
        return self._scopes.get(name) or self._load("name = ?", name)

    def _load(self, condition: str, value: object) -> Scope | None:
        # scopes whose rows are not committed yet are in memory
        rows = self.journal.look(f"{tables.SELECT_SCOPE} WHERE name IS NOT NULL AND {condition}", (value,))
        if not rows:
            return None
        row = tables.ScopeRow(*rows[0])
        scope = self._keep(Scope(row, self._desk, stored=True))
        self._rest(scope)
        return scope

    def _keep(self, scope: Scope) -> Scope:
        self._scopes[scope.name] = scope
        self._by_id[scope.id] = scope
        return scope

    def _rest(self, scope: Scope) -> None:
        """It has ended: of those at rest only the last ones are kept in memory."""
        if scope.ended_at is None or scope.open or self._by_id.get(scope.id) is not scope:
            return
        scope.mark = self.journal.mark
        self._resting.pop(scope.id, None)
        self._resting[scope.id] = scope
        while len(self._resting) > MAX_RESTING:
            oldest = self._resting[next(iter(self._resting))]
            if oldest.open or oldest.followers:
                del self._resting[oldest.id]
                continue
            try:
                self._drop(oldest)
            except DSecError:  # the disk is full: it is the next one's turn to try
                return

    def _drop(self, scope: Scope) -> None:
        """Whoever asks for it again asks the database, which must have what was written ahead until it rested.

        :raises DSecError: the disk is full.
        """
        self.journal.commit_to(scope.mark)
        self._resting.pop(scope.id, None)
        if self._by_id.pop(scope.id, None) is scope:
            self._scopes.pop(scope.name, None)

    def _write_counts(self, least: int = 1) -> None:
        for scope in self._scopes.values():
            scope.counted(least)

    def _info(self, scope: Scope) -> ScopeInfo:
        return ScopeInfo(scope.name, scope.kind, scope.last_seq, scope.created_at, scope.ended_at)
