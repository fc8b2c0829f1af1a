"""One call, from its CALL to its RESULT or ERROR."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..protocol.errors import DeadlineExceededError, DSecError, WireError
from ..protocol.frames import END, STDERR, STDIN, STDOUT, WINDOW, Kind, encode, encode_credit
from .outgoing import Outgoing

if TYPE_CHECKING:
    from .connection import Connection


class Answer(NamedTuple):
    """The RESULT of a call and what its output streams held."""

    value: Any
    stdout: bytes
    stderr: bytes
    frames: Sequence[bytes]
    """`stdout` as it was cut by its sender."""
    replayed: bool = False
    """Told from the command log; nothing ran now."""


EventHandler = Callable[[bytes], None]


class Exchange:
    """What the connection tells of a call. The base takes and drops everything: what an abandoned call needs."""

    __slots__ = ("connection", "ended", "method", "number")

    def __init__(self, connection: Connection, method: str) -> None:
        self.connection = connection
        self.method = method
        self.number = 0
        self.ended = False

    def on_data(self, stream: int, payload: bytes, end: bool) -> None:
        """:raises WireError: more than was granted, or a stream that the call does not have."""
        if payload:
            self.connection.send(encode_credit(self.number, stream, len(payload)))

    def on_credit(self, stream: int, amount: int) -> None:
        """The server consumed `amount` bytes of what we sent."""

    def on_event(self, payload: bytes) -> None:
        """News of the call."""

    def on_result(self, payload: bytes) -> None:
        """The call ended well. Called once, and nothing after it."""

    def on_error(self, error: DSecError) -> None:
        """The call ended with ERROR, or the connection did. Called once, and nothing after it."""

    def _send_stdin(self, data: bytes, end: bool) -> None:
        self.connection.send(encode(Kind.DATA, self.number, data, STDIN, END if end else 0))


class Collecting(Exchange):
    """A request whose whole answer is waited for: its data is collected, at most `bound` bytes a stream."""

    __slots__ = ("_bound", "_chunks", "_consumed", "_future", "_on_event", "_progress", "_received", "_stdin", "_timer")

    def __init__(
        self, connection: Connection, method: str, bound: int = 0, on_event: EventHandler | None = None
    ) -> None:
        super().__init__(connection, method)
        self._future: asyncio.Future[bytes] = connection.loop.create_future()
        self._bound = bound
        self._chunks: dict[int, list[bytes]] = {}
        self._received: dict[int, int] = {}
        self._consumed: dict[int, int] = {}
        self._on_event = on_event
        self._stdin: Outgoing | None = None
        self._progress = 0
        self._timer: asyncio.TimerHandle | None = None

    def give(self, stdin: bytes) -> None:
        """All that the call's stdin gets."""
        self._stdin = Outgoing(self._send_stdin)
        self._stdin.offer(stdin, end=True)

    async def answer(self, timeout: float | None, extend: bool = False) -> bytes:
        """The payload of the RESULT. With `extend` the time starts anew whenever data moves either way.

        :raises DeadlineExceededError: it did not come in `timeout` seconds; the call was cancelled.
        """
        if timeout is not None:
            self._set_timer(timeout, extend)
        try:
            return await self._future
        except asyncio.CancelledError:
            self.connection.abandon(self)
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def whole(self, value: Any) -> Answer:
        """With `value`, the decoded RESULT."""
        frames = self._chunks.get(STDOUT, ())
        return Answer(value, b"".join(frames), b"".join(self._chunks.get(STDERR, ())), frames)

    def _set_timer(self, timeout: float, extend: bool) -> None:
        seen = self._progress if extend else -1
        self._timer = self.connection.loop.call_later(timeout, self._expire, timeout, seen)

    def _expire(self, timeout: float, seen: int) -> None:
        """`seen` is the progress there was when the timer was set, or -1 when progress does not count."""
        if self._future.done():
            return
        if seen not in (-1, self._progress):
            self._set_timer(timeout, extend=True)
            return
        self.connection.abandon(self)
        message = f"cannot wait longer for {self.method}: no answer within {timeout:g} s; the call was cancelled"
        self._future.set_exception(DeadlineExceededError(message, method=self.method, timeout_s=timeout))

    def on_data(self, stream: int, payload: bytes, end: bool) -> None:
        received = self._received.get(stream, 0) + len(payload)
        if received > self._bound:
            raise WireError(f"cannot accept more than {self._bound} bytes on stream {stream} of {self.method}")
        self._progress += 1
        self._received[stream] = received
        self._chunks.setdefault(stream, []).append(payload)
        consumed = self._consumed.get(stream, 0) + len(payload)
        if consumed >= WINDOW // 2 and not end:
            self.connection.send(encode_credit(self.number, stream, consumed))
            consumed = 0
        self._consumed[stream] = consumed

    def on_credit(self, stream: int, amount: int) -> None:
        if self._stdin is not None and stream == STDIN:
            self._progress += 1
            self._stdin.grant(amount)

    def on_event(self, payload: bytes) -> None:
        self._progress += 1
        if self._on_event is None or self._future.done():
            return
        try:
            self._on_event(payload)
        except Exception as error:  # the caller's own code failed: that ends its call, not the connection
            self.connection.abandon(self)
            self._future.set_exception(error)

    def on_result(self, payload: bytes) -> None:
        self._stop_stdin()
        if not self._future.done():
            self._future.set_result(payload)

    def on_error(self, error: DSecError) -> None:
        self._stop_stdin()
        if not self._future.done():
            self._future.set_exception(error)

    def _stop_stdin(self) -> None:
        if self._stdin is not None:
            self._stdin.stop()
