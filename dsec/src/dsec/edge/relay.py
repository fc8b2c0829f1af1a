"""One call in a sandbox, seen from the edge: it lets everything through, keeps the books, and hands over the end only
when the command log has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from dsec import faults
from dsec.bus import Caller, encode_error
from dsec.commandlog import OpenStep, Recorder
from libdsec.protocol.errors import BY_CODE, DeadlineExceededError, DSecError, ErrorBody, OutcomeUnknownError

from . import pausing
from .feed import Feed
from .sandbox import Sandbox

if TYPE_CHECKING:
    from .edge import Edge

OVERDUE_S = 10.0
"""After a command's timeout: PID 1 ends the command in much less."""

_decode_error = msgspec.msgpack.Decoder(ErrorBody).decode


class Relay:
    """The caller that a driver answers to. While it is open the sandbox is in use."""

    __slots__ = (
        "_caller",
        "_collects",
        "_detail",
        "_done",
        "_edge",
        "_event",
        "_expired",
        "_harmless",
        "_recorder",
        "_sandbox",
        "_step",
        "credit",
        "due",
        "event",
        "feed",
        "when_drained",
    )

    def __init__(
        self,
        edge: Edge,
        sandbox: Sandbox,
        caller: Caller,
        step: OpenStep,
        event: str,
        detail: dict[str, Any] | None,
        *,
        gathers: bool = False,
        harmless: bool = False,
    ) -> None:
        """`event` and `detail`: how the end is written into the sandbox's events; no detail, no entry. `gathers`: see
        `Feed`. `harmless`: begun and canceled, it may be done again from its beginning."""
        self._edge = edge
        self._sandbox = sandbox
        self._caller = caller
        self._step = step
        self._recorder = Recorder(edge.held)
        self._collects = not step.opaque
        self._harmless = harmless
        self.feed = Feed(
            caller, self._recorder, live=bool(step.opaque), gathers=gathers, on_given_up=self._given_up, stir=self._stir
        )
        self._event = event
        self._detail = detail
        self._done = self._expired = False
        self.due = float("inf")
        """When PID 1 must have answered, by the monotonic clock."""
        # these need no book-keeping here: others' own methods, without a step between
        self.credit: Callable[[int, int], None] = self.feed.consumed
        self.event = caller.event
        self.when_drained = caller.when_drained
        sandbox.open.add(self)
        edge.calls += 1

    def data(self, stream: int, payload: bytes, flags: int) -> bool:
        if self._collects:
            self._recorder.output(stream, payload)
        self.feed.passed(stream, len(payload))
        return self._caller.data(stream, payload, flags)

    def result(self, payload: bytes) -> None:
        if self._done:
            self._late()
            return
        self._done = True
        if self.feed.interrupted and _was_canceled(payload):
            self._cut_short(payload, lambda: self._caller.result(payload))
        else:
            self._end("result", payload, lambda: self._caller.result(payload))

    def error(self, payload: bytes) -> None:
        if self._done:
            self._late()
            return
        self._done = True
        code = _code(payload)
        kind = BY_CODE.get(code, DSecError)
        if kind.retry != "never":
            # it surely did not run: the number is free for the next try
            self._withdraw(payload, lambda: self._caller.error(payload))
            return
        if self.feed.interrupted and code == DeadlineExceededError.code:
            self._cut_short(payload, lambda: self._caller.error(payload))
            return
        state = "unknown" if code == OutcomeUnknownError.code else "error"
        self._end(state, payload, lambda: self._caller.error(payload))

    @property
    def done(self) -> bool:
        return self._done

    def _stir(self) -> None:
        if self._sandbox.paused:
            self._edge.spawn(pausing.wake(self._edge, self._sandbox))

    def _given_up(self) -> None:
        """Before anything was sent."""
        if self._done:
            return
        self._done = True
        payload = encode_error(DeadlineExceededError("cannot run it: its caller gave it up before it was sent"))
        self._withdraw(payload, lambda: self._caller.error(payload))

    def _cut_short(self, payload: bytes, tell: Callable[[], None]) -> None:
        """Its client gave it up, or its input was lost, and it was killed for that. Whoever runs the same program again
        must not take this for what came of it."""
        if self._harmless:
            self._withdraw(payload, tell)
        else:
            self._end("unknown", payload, tell)

    def fail(self, error: DSecError) -> None:
        self.error(encode_error(error))

    def refuse(self, error: DSecError) -> None:
        """The step could not be begun in the log: nothing was sent, and nothing is recorded."""
        if not self._done:
            self._done = True
            payload = encode_error(error)
            self._close(payload)
            self._caller.error(payload)

    def limit(self, timeout_ms: int) -> None:
        """Expect an answer once the command's own timeout is over. 0 is no timeout."""
        if timeout_ms:
            self.due = self._edge.clock.monotonic() + timeout_ms / 1000 + OVERDUE_S

    def expire(self) -> None:
        """PID 1 is long over the command's own timeout. Whatever it may say later is not heard any more. Until then the
        call runs, and is not acknowledged."""
        self._expired = True
        self.fail(
            OutcomeUnknownError(
                f"cannot tell how the command in sandbox {self._sandbox.id} ended: PID 1 has not answered "
                f"{OVERDUE_S:g} s after its timeout; look before repeating it, or stop the sandbox",
                sandbox=self._sandbox.id,
            )
        )

    def _late(self) -> None:
        if self._expired:
            self.feed.acknowledge()

    def _end(self, state: Any, payload: bytes, tell: Callable[[], None]) -> None:
        faults.point("step.answered")
        recorder = self._recorder
        self._step.end(
            state=state,
            answer=payload,
            stdout=recorder.stdout,
            stderr=recorder.stderr,
            input_digest=self.feed.input_digest,
            opaque=recorder.opaque,
            then=lambda: self._deliver(payload, tell),
            failed=self._unrecorded,
        )

    def _withdraw(self, payload: bytes, tell: Callable[[], None]) -> None:
        self._step.withdraw(lambda: self._deliver(payload, tell))

    def _deliver(self, payload: bytes, tell: Callable[[], None]) -> None:
        faults.point("step.recorded")
        self._close(payload)
        if not self._expired:
            self.feed.acknowledge()
        tell()
        faults.point("step.told")

    def _unrecorded(self, error: DSecError) -> None:
        """It ran, and the log does not take how it ended: nobody may be told that it is done."""
        told = OutcomeUnknownError(
            f"cannot tell how a call in sandbox {self._sandbox.id} ended: it is over, but could not be recorded: "
            f"{error}; make room, then look before repeating it",
            sandbox=self._sandbox.id,
        )
        payload = encode_error(told)
        self._close(payload)
        self._caller.error(payload)

    def _close(self, payload: bytes) -> None:
        self._recorder.close()
        self._edge.calls -= 1
        sandbox, now = self._sandbox, self._edge.clock.now()
        sandbox.open.discard(self)
        sandbox.touch(now, self._edge.clock.monotonic())
        if self._detail is not None:
            sandbox.log.add(now, self._event, self._detail, payload)


class _Ended(msgspec.Struct):
    ended: str = ""


_decode_ended = msgspec.msgpack.Decoder(_Ended).decode


def _was_canceled(payload: bytes) -> bool:
    try:
        return _decode_ended(payload).ended == "canceled"
    except msgspec.DecodeError:
        return False


def _code(payload: bytes) -> str:
    try:
        return _decode_error(payload).code
    except msgspec.DecodeError:
        return DSecError.code
