"""One call of a client in a sandbox, seen from the edge: it lets everything through and keeps the books."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsec.bus import Answerer, Caller

from .clock import Clock
from .sandbox import Sandbox


class Relay:
    """The caller that a driver answers to. While it is open the sandbox is in use."""

    __slots__ = ("_caller", "_clock", "_detail", "_event", "_sandbox", "credit", "data", "event", "when_drained")

    def __init__(
        self, sandbox: Sandbox, caller: Caller, clock: Clock, event: str, detail: dict[str, Any] | None
    ) -> None:
        """`event` and `detail`: how the end is written into the sandbox's log; no detail, no entry."""
        self._sandbox = sandbox
        self._caller = caller
        self._clock = clock
        self._event = event
        self._detail = detail
        # streams need no book-keeping: the caller's own methods, without a step between
        self.data = caller.data
        self.credit: Callable[[int, int], None] = caller.credit
        self.event = caller.event
        self.when_drained = caller.when_drained
        sandbox.open.add(self)

    def result(self, payload: bytes) -> None:
        self._close(payload)
        self._caller.result(payload)

    def error(self, payload: bytes) -> None:
        self._close(payload)
        self._caller.error(payload)

    def drop(self) -> None:
        """The call could not be opened."""
        self._sandbox.open.discard(self)

    def _close(self, payload: bytes) -> None:
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
