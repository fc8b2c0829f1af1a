"""One step while it runs, and what is known of one that has ended."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from libdsec.protocol.calls import METHODS
from libdsec.protocol.errors import DSecError, OutcomeUnknownError, UnavailableError, UnsupportedOperationError
from libdsec.protocol.steps import StepState, details, request_digest, step_name

if TYPE_CHECKING:
    from .scope import Scope

Then = Callable[[], None]
Failed = Callable[[DSecError], None]
Ended = Literal["result", "error", "unknown"]


class RecordedStep(NamedTuple):
    """A step that has an outcome which can be answered again (`play`)."""

    scope: str
    scope_id: int
    seq: int
    track: str
    n: int
    method: str
    state: StepState
    answer: bytes
    """The RESULT's or the ERROR's map."""
    stdout_size: int
    stderr_size: int
    stdout: bytes | None
    """None: it lies in the scope's file from `blob_at`, stream 3 behind stream 2."""
    stderr: bytes | None
    blob_at: int
    cuts: tuple[int, ...]
    """Lengths of the DATA of stream 2 where each is a value of its own; empty: cut as you like."""


Outcome = RecordedStep | DSecError
"""What joiners are told: the answer, or why there is none (`OutcomeUnknownError`; `UnavailableError`: it did not run,
say it again; `UnsupportedOperationError`: it is recorded and cannot be answered again)."""


def digest_of_row(method: str, request: bytes) -> bytes:
    """The digest of a request as it came; empty where this version does not know its method or arguments."""
    try:
        return request_digest(method, msgspec.msgpack.decode(request, type=METHODS[method][0]))
    except (KeyError, msgspec.MsgspecError):
        return b""


class Fate(enum.Enum):
    OPEN = "open"
    LOST = "lost"
    """Its outcome could not be written: the row says running until the next start."""
    WITHDRAWN = "withdrawn"
    """Its row could not be taken out. The number is free: whoever comes takes the row over, until the log is mended."""


class OpenStep:
    """A step whose row says that it runs. Ended once, by `end` or `withdraw`."""

    __slots__ = (
        "_args",
        "_begun",
        "_digest",
        "_joined",
        "_refused",
        "_scope",
        "_waiting",
        "began_at",
        "ended",
        "fate",
        "method",
        "n",
        "opaque",
        "run",
        "sandbox",
        "seq",
        "track",
        "tried",
    )

    def __init__(
        self,
        scope: Scope,
        *,
        seq: int,
        track: str,
        n: int,
        run: int,
        tried: int,
        method: str,
        sandbox: str,
        args: msgspec.Struct | None = None,
        digest: bytes = b"",
        began_at: float,
        opaque: str,
        begun: bool = False,
    ) -> None:
        self._scope = scope
        self.seq = seq
        self.track = track
        self.n = n
        self.run = run
        self.tried = tried
        """Earlier runs of this step whose outcome is unknown."""
        self.method = method
        self.sandbox = sandbox
        self._args = args
        self._digest = digest
        self.began_at = began_at
        self.opaque = opaque
        self.fate = Fate.OPEN
        self.ended = False
        """`end` or `withdraw` was said."""
        self._begun = begun
        self._refused: DSecError | None = None
        self._waiting: list[tuple[Then, Failed]] = []
        self._joined: list[Callable[[Outcome], None]] = []

    @property
    def scope(self) -> str:
        return self._scope.name

    @property
    def digest(self) -> bytes:
        """Of its request."""
        if not self._digest:
            self.take_digest()
        return self._digest

    def take_digest(self) -> None:
        """Of a new step, when it is under way and its caller waits for nothing of ours: the digest is needed only when
        it ends, or when another asks for the same step."""
        if self._args is None:
            self._digest = digest_of_row(self.method, self.request())
        else:
            self._digest = request_digest(self.method, self._args)
            self._args = None

    @property
    def key(self) -> str:
        """The `tag` by which an init names this run of the step; at most 64 characters."""
        return f"{self._scope.id}:{self.seq}:{self.run}"

    def request(self) -> bytes:
        """The arguments' map as it came, from its row; empty where that is not written.

        :raises UnavailableError | CapacityError | InternalError: the journal cannot be read.
        """
        return self._scope.request(self.seq)

    def when_begun(self, callback: Then, failed: Failed) -> None:
        """Call `callback` once the row is committed, or `failed` when it could not be (at once where that is known):
        the step is not in the log then, nothing may be sent for it, and neither `end` nor `withdraw` is said."""
        if self._begun:
            callback()
        elif self._refused is not None:
            failed(self._refused)
        else:
            self._waiting.append((callback, failed))

    def join(self, callback: Callable[[Outcome], None]) -> None:
        """Be told the outcome, after its commit."""
        self._joined.append(callback)

    def end(
        self,
        *,
        state: Ended,
        answer: bytes,
        stdout: Sequence[bytes],
        stderr: Sequence[bytes],
        then: Then,
        failed: Failed,
        input_digest: bytes = b"",
        opaque: str = "",
    ) -> None:
        """Record the outcome; `then` after its commit, and then joiners and followers. The pieces are not changed
        afterwards.

        `failed` when it could not be written: what happened did happen, and only the log does not have it. Whoever
        says the step again before a restart is told that its outcome is unknown.
        `opaque`: why the outputs are not recorded, beside what was said at its beginning.
        :raises RuntimeError: it was ended before.
        """
        self._close()
        self._scope.end(self, state, answer, stdout, stderr, input_digest, opaque or self.opaque, then, failed)

    def withdraw(self, then: Then) -> None:
        """Take it out of the log: it surely did not run, and its number is free again. A step that had run before
        with an unknown outcome is such a one again. `then` is called in any case: the caller's answer is the same.

        :raises RuntimeError: it was ended before.
        """
        self._close()
        self._scope.withdraw(self, then)

    def withdraw_again(self) -> None:
        """For the log: the row could not be taken out; perhaps it can now. Who comes meanwhile joins it."""
        if self.fate is Fate.WITHDRAWN and self._scope.open.get((self.track, self.n)) is self:
            self.fate = Fate.OPEN
            self._scope.withdraw(self, lambda: None)

    def begin_done(self, error: DSecError | None) -> None:
        """For the scope: the row is committed, or is not."""
        self._begun, self._refused = error is None, error
        waiting, self._waiting = self._waiting, []
        for callback, failed in waiting:
            if error is None:
                callback()
            else:
                failed(error)
        if error is not None:
            self.tell(error)

    def tell(self, outcome: Outcome) -> None:
        """For the scope: tell joiners."""
        joined, self._joined = self._joined, []
        for callback in joined:
            callback(outcome)

    @property
    def heard(self) -> bool:
        return bool(self._joined)

    def _close(self) -> None:
        if self.ended:
            raise RuntimeError(f"step {step_name(self.track, self.n)} of {self.scope} was ended before")
        self.ended = True


class Begun(NamedTuple):
    """It is new, and the caller's to run."""

    entry: OpenStep


class Recorded(NamedTuple):
    """It has an outcome that can be answered again."""

    step: RecordedStep


class Joined(NamedTuple):
    """It runs on behalf of another call: be told the outcome by `OpenStep.join`."""

    entry: OpenStep


def unknown(scope: str, track: str, n: int, method: str, why: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"cannot tell how step {step_name(track, n)} of {scope} ({method}) ended: {why}; look what it did before "
        "running it again",
        **details(scope, track, n),
        method=method,
    )


def not_run(scope: str, track: str, n: int, method: str) -> UnavailableError:
    return UnavailableError(
        f"cannot answer step {step_name(track, n)} of {scope} ({method}): the call it had joined did not run; "
        "say it again",
        **details(scope, track, n),
        joined=True,
    )


def not_replayable(scope: str, track: str, n: int, method: str, why: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"cannot replay step {step_name(track, n)} of {scope} ({method}): {why}",
        **details(scope, track, n),
        method=method,
        opaque=why,
    )
