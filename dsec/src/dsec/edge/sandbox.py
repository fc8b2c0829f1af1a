"""One sandbox as the edge knows it: its state, moved by compare-and-set along the one table."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from dsec.drivers.base import Instance, Slot
from libdsec.protocol.errors import DSecError, SandboxFailedError, SandboxStateError
from libdsec.protocol.lifecycle import ALLOWED, FINAL, Operation, State, allows, may_move
from libdsec.protocol.spec import Limits, SandboxInfo, SandboxSpec

from .eventlog import EventLog

if TYPE_CHECKING:
    from .relay import Relay
    from .resolve import Defaults

PAUSES = frozenset({State.PAUSING, State.PAUSED, State.RESUMING})
"""States in which nothing can be sent to it at once."""


class Sandbox:
    __slots__ = (
        "cause",
        "create_ms",
        "created_at",
        "creation",
        "deadline",
        "defaults",
        "ending",
        "error",
        "id",
        "instance",
        "job",
        "key",
        "last_used_at",
        "layers",
        "limits",
        "log",
        "message",
        "node",
        "open",
        "paused_at",
        "paused_mono",
        "paused_s",
        "principal",
        "settled",
        "slot",
        "spec",
        "state",
        "track",
        "turn",
        "used",
    )

    def __init__(self, *, id: str, spec: SandboxSpec, node: str, principal: str, now: float, monotonic: float) -> None:
        self.id = id
        self.spec = spec
        self.node = node
        self.principal = principal
        self.key: str | None = None
        self.job = spec.job
        self.track = ""
        """Of the command log: where its creator's steps go."""
        self.state = State.CREATING
        self.cause: str | None = None
        self.message = ""
        """The cause in words."""
        self.error: DSecError | None = None
        """Why the creation failed, for those who wait for it too."""
        self.created_at = now
        self.last_used_at = now
        self.used = monotonic
        self.deadline = None if spec.deadline_s is None else monotonic + spec.deadline_s
        self.create_ms: float | None = None
        self.paused_at: float | None = None
        self.paused_mono = 0.0
        self.paused_s = 0.0
        self.turn = asyncio.Lock()
        """Held by whoever pauses, resumes or ends it: one at a time."""
        self.layers: tuple[str, ...] = ()
        self.log = EventLog()
        self.open: set[Relay] = set()
        """Calls of clients that run in it now."""
        self.settled = asyncio.Event()
        """Set once it is no longer being created."""
        self.creation: asyncio.Task[Any] | None = None
        self.ending: asyncio.Task[None] | None = None
        self.slot: Slot | None = None
        self.limits: Limits = spec.limits
        self.defaults: Defaults | None = None
        self.instance: Instance | None = None

    def move(self, expected: State, following: State) -> bool:
        """Compare and set. False: it is not in the expected state (any more)."""
        if self.state is not expected:
            return False
        if not may_move(expected, following):
            raise ValueError(f"no transition from {expected} to {following}")
        self.state = following
        if expected is State.CREATING:
            self.settled.set()
        return True

    @property
    def scope(self) -> str:
        """Of its command log: its rollout's, or its own."""
        return self.spec.rollout or self.id

    @property
    def paused(self) -> bool:
        return self.state in PAUSES

    def require(self, operation: Operation, verb: str) -> Instance:
        """The instance, for an operation that the state allows.

        :raises SandboxFailedError: it has failed; the cause is in the details.
        :raises SandboxStateError: any other state that does not allow it.
        """
        if allows(operation, self.state) and self.instance is not None:
            return self.instance
        if self.state is State.FAILED:
            raise SandboxFailedError(
                f"cannot {verb} in sandbox {self.id}: it has failed: {self.message or self.cause}",
                sandbox=self.id,
                cause=self.cause,
            )
        raise self.not_allowed(
            operation,
            f"cannot {verb} in sandbox {self.id}: it is {self.state}" + (f" ({self.cause})" if self.cause else ""),
        )

    def not_allowed(self, operation: Operation, message: str) -> SandboxStateError:
        """The refusal of an operation in the state that it is in."""
        return SandboxStateError(
            message,
            sandbox=self.id,
            state=str(self.state),
            operation=str(operation),
            allowed=sorted(str(state) for state in ALLOWED[operation]),
        )

    @property
    def running_defaults(self) -> Defaults:
        """What a create resolved; legal once `require` has passed."""
        if self.defaults is None:
            raise ValueError(f"sandbox {self.id} has no defaults")
        return self.defaults

    @property
    def final(self) -> bool:
        return self.state in FINAL

    def begin_pause(self, now: float, monotonic: float) -> None:
        """Its time stands still from here."""
        self.paused_at, self.paused_mono = now, monotonic

    def end_pause(self, now: float, monotonic: float) -> None:
        """Its time goes on: what it has left is what it had. An earlier edge may have begun the pause, of which
        `paused_mono` knows nothing, and the restored deadline everything."""
        length = max(0.0, monotonic - self.paused_mono)
        self.used += length
        if self.deadline is not None:
            self.deadline += length
        for relay in self.open:
            relay.due += length
        if self.paused_at is not None:
            self.paused_s += max(0.0, now - self.paused_at)
        self.paused_at = None

    def touch(self, now: float, monotonic: float) -> None:
        """A client used it."""
        self.last_used_at = now
        self.used = monotonic

    def info(self) -> SandboxInfo:
        return SandboxInfo(
            id=self.id,
            spec=self.spec,
            state=str(self.state),
            cause=self.cause,
            created_at=self.created_at,
            last_used_at=self.last_used_at,
            node=self.node,
            create_ms=self.create_ms,
            job=self.job,
            rollout=self.spec.rollout,
            paused_at=self.paused_at,
            paused_s=round(self.paused_s, 3),
            track=self.track,
        )
