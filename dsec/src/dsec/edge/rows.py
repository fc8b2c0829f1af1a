"""Sandboxes in the journal: what a successor needs to adopt them, or to say how they ended.

A row is written when a sandbox runs, together with the outcome of its create, and at each change of its state. What
is not written down did not come to life: its process, control group and upper are swept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from dsec.journal import Journal, Schema
from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.errors import DSecError
from libdsec.protocol.lifecycle import State
from libdsec.protocol.spec import Limits, SandboxSpec

from .sandbox import Sandbox

SCHEMA = Schema(
    "sandboxes",
    (
        (
            """CREATE TABLE sandboxes (
            id TEXT PRIMARY KEY, state TEXT NOT NULL, created_at REAL NOT NULL, ended_at REAL, record BLOB NOT NULL
        ) WITHOUT ROWID""",
            "CREATE INDEX sandboxes_ended ON sandboxes (ended_at) WHERE ended_at IS NOT NULL",
        ),
    ),
)


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sandbox as it is written down. Fields are only ever added, with a default."""

    spec: SandboxSpec
    principal: str
    created_at: float
    last_used_at: float
    limits: Limits
    config: ImageConfig
    layers: tuple[str, ...]
    slot: int
    kept: bytes
    """Of `Instance.keep`."""
    state: str
    key: str | None = None
    job: str | None = None
    track: str = ""
    cause: str | None = None
    message: str = ""
    create_ms: float | None = None
    paused_at: float | None = None
    paused_s: float = 0.0
    id_base: int = 0
    """First of its host ids; 0: not written down, as of the edge's own base."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode

_SAVE = "INSERT OR REPLACE INTO sandboxes (id, state, created_at, ended_at, record) VALUES (?, ?, ?, ?, ?)"
_FORGET = (
    "DELETE FROM sandboxes WHERE ended_at IS NOT NULL AND id NOT IN "
    "(SELECT id FROM sandboxes WHERE ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT ?)"
)


class Rows:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._written: set[str] = set()
        """Those of which there is a row that is to change yet."""
        self._late: dict[str, tuple[Sandbox, float | None]] = {}
        """Those whose row could not be written, and when they ended."""

    def save(
        self,
        sandbox: Sandbox,
        now: float,
        then: Callable[[], None] | None = None,
        failed: Callable[[DSecError], None] | None = None,
    ) -> None:
        """Write down how it is; `then` is called when that has happened, `failed` when it could not be."""
        if sandbox.id not in self._written and sandbox.instance is None:
            # it never ran, so nobody has to find it again
            if then is not None:
                then()
            return
        self._written.add(sandbox.id)
        ended = now if sandbox.final else None
        values = (sandbox.id, str(sandbox.state), sandbox.created_at, ended, _encode(_record(sandbox)))

        def written() -> None:
            if ended is not None:
                self._written.discard(sandbox.id)
            if then is not None:
                then()

        def late(error: DSecError) -> None:
            self._late[sandbox.id] = sandbox, ended
            if failed is not None:
                failed(error)

        self._journal.submit(_SAVE, values, written, late, ahead=True)

    def mend(self, now: float) -> None:
        """Now and then: write how sandboxes are, or have ended, where a full disk did not take it."""
        late, self._late = self._late, {}
        for sandbox, ended in late.values():
            # one that has ended since was saved then
            if ended is not None or not sandbox.final:
                self.save(sandbox, now if ended is None else ended)

    def load(self, kept_final: int) -> Iterator[tuple[str, Record]]:
        """Every sandbox written down, the oldest first; of those that have ended the last `kept_final`."""
        self._journal.submit(_FORGET, (kept_final,))
        for name, record in self._journal.query("SELECT id, record FROM sandboxes ORDER BY created_at", ()):
            self._written.add(name)
            yield name, _decode(record)


def _record(sandbox: Sandbox) -> Record:
    slot, defaults, instance = sandbox.slot, sandbox.defaults, sandbox.instance
    return Record(
        spec=sandbox.spec,
        principal=sandbox.principal,
        created_at=sandbox.created_at,
        last_used_at=sandbox.last_used_at,
        limits=sandbox.limits,
        config=defaults.image if defaults is not None else ImageConfig(),
        layers=sandbox.layers,
        slot=slot.index if slot is not None else -1,
        kept=instance.keep() if instance is not None else b"",
        state=str(sandbox.state),
        key=sandbox.key,
        job=sandbox.job,
        track=sandbox.track,
        cause=sandbox.cause,
        message=sandbox.message,
        create_ms=sandbox.create_ms,
        paused_at=sandbox.paused_at,
        paused_s=sandbox.paused_s,
        id_base=slot.id_base if slot is not None else 0,
    )


def restored(name: str, record: Record, *, node: str, now: float, monotonic: float) -> Sandbox:
    """The sandbox of a row. Its idle time begins anew; its deadline is where it was."""
    sandbox = Sandbox(
        id=name, spec=record.spec, node=node, principal=record.principal, now=record.created_at, monotonic=monotonic
    )
    sandbox.state = State(record.state)
    sandbox.settled.set()
    sandbox.last_used_at = record.last_used_at
    sandbox.limits, sandbox.layers = record.limits, record.layers
    sandbox.key, sandbox.job, sandbox.track = record.key, record.job, record.track
    sandbox.cause, sandbox.message, sandbox.create_ms = record.cause, record.message, record.create_ms
    sandbox.paused_at, sandbox.paused_s = record.paused_at, record.paused_s
    sandbox.paused_mono = monotonic
    if record.spec.deadline_s is not None:
        stood_still = record.paused_s + (now - record.paused_at if record.paused_at is not None else 0.0)
        sandbox.deadline = monotonic + record.created_at + record.spec.deadline_s + stood_still - now
    return sandbox
