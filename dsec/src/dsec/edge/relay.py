"""One call of a client in a sandbox, seen from the edge: it lets everything through and keeps the books."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsec.bus import Answerer, Caller, encode_error
from libdsec.protocol.errors import OutcomeUnknownError

from .clock import Clock
from .sandbox import Sandbox

OVERDUE_S = 10.0
"""After a command's timeout: PID 1 ends the command in much less."""


class Relay:
    """The caller that a driver answers to. While it is open the sandbox is in use."""

    __slots__ = (
        "_caller",
        "_clock",
        "_detail",
        "_done",
        "_event",
        "_sandbox",
        "credit",
        "data",
        "due",
        "event",
        "when_drained",
    )

    def __init__(
        self, sandbox: Sandbox, caller: Caller, clock: Clock, event: str, detail: dict[str, Any] | None
    ) -> None:
        """`event` and `detail`: how the end is written into the sandbox's log; no detail, no entry."""
        self._sandbox = sandbox
        self._caller = caller
        self._clock = clock
        self._event = event
        self._detail = detail
        self._done = False
        self.due = float("inf")
        """When PID 1 must have answered, by the monotonic clock."""
        # streams need no book-keeping: the caller's own methods, without a step between
        self.data = caller.data
        self.credit: Callable[[int, int], None] = caller.credit
        self.event = caller.event
        self.when_drained = caller.when_drained
        sandbox.open.add(self)

    def result(self, payload: bytes) -> None:
        if not self._done:
            self._close(payload)
            self._caller.result(payload)

    def error(self, payload: bytes) -> None:
        if not self._done:
            self._close(payload)
            self._caller.error(payload)

    def limit(self, timeout_ms: int) -> None:
        """Expect an answer once the command's own timeout is over. 0 is no timeout."""
        if timeout_ms:
            self.due = self._clock.monotonic() + timeout_ms / 1000 + OVERDUE_S

    def expire(self) -> None:
        """PID 1 is long over the command's own timeout. Whatever it may say later is not heard any more."""
        self.error(
            encode_error(
                OutcomeUnknownError(
                    f"cannot tell how the command in sandbox {self._sandbox.id} ended: PID 1 has not answered "
                    f"{OVERDUE_S:g} s after its timeout; look before repeating it, or stop the sandbox",
                    sandbox=self._sandbox.id,
                )
            )
        )

    def drop(self) -> None:
        """The call could not be opened."""
        self._sandbox.open.discard(self)

    def _close(self, payload: bytes) -> None:
        self._done = True
        sandbox, now = self._sandbox, self._clock.now()
        sandbox.open.discard(self)
        sandbox.touch(now, self._clock.monotonic())
        if self._detail is not None:
            sandbox.log.add(now, self._event, self._detail, payload)


def open_call(
    sandbox: Sandbox,
    relay: Relay,
    call: Callable[..., Answerer],
    method: str,
    args: Any,
    *,
    streaming: bool,
) -> Answerer:
    """:raises DSecError: what `Instance.call` refuses; the relay is closed then."""
    try:
        return call(method, args, relay, streaming=streaming)
    except BaseException:
        relay.drop()
        raise
