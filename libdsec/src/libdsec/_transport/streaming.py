"""A call with data under way in both directions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..protocol.errors import DeadlineExceededError, DSecError, WireError
from ..protocol.frames import STDIN, WINDOW, Kind, encode, encode_credit
from .exchange import Exchange
from .outgoing import Outgoing

if TYPE_CHECKING:
    from .connection import Connection


class Incoming:
    """Data of one stream of a streaming call that nobody has read yet."""

    __slots__ = ("_allowance", "_consumed", "_exchange", "_stream", "chunks", "ended")

    def __init__(self, exchange: Streaming, stream: int) -> None:
        self._exchange = exchange
        self._stream = stream
        self._allowance = WINDOW
        self._consumed = 0
        self.chunks: deque[bytes] = deque()
        self.ended = False

    def put(self, payload: bytes, end: bool) -> None:
        self._allowance -= len(payload)
        if self._allowance < 0 or self.ended:
            raise WireError(f"cannot accept data on stream {self._stream} of {self._exchange.method}: none was granted")
        if payload:
            self.chunks.append(payload)
        self.ended = end

    def take(self) -> bytes | None:
        """The next piece if there is one. What is taken is granted again."""
        if not self.chunks:
            return None
        chunk = self.chunks.popleft()
        self._consumed += len(chunk)
        if self._consumed >= WINDOW // 2 and not self.ended:
            self._allowance += self._consumed
            self._exchange.connection.send(encode_credit(self._exchange.number, self._stream, self._consumed))
            self._consumed = 0
        return chunk

    async def get(self, timeout: float | None = None) -> bytes | None:
        """The next piece, or None at the end.

        :raises DSecError: how the call ended, after the data that came before.
        """
        await self._exchange.until(lambda: bool(self.chunks) or self.ended, timeout)
        chunk = self.take()
        if chunk is None and self._exchange.error is not None:
            raise self._exchange.error
        return chunk


class Streaming(Exchange):
    """A call with data both ways. Waiters wait for a condition; whatever happens wakes them to look again."""

    __slots__ = ("_on_error", "_waiters", "error", "incoming", "payload", "stdin")

    def __init__(
        self,
        connection: Connection,
        method: str,
        streams: tuple[int, ...],
        on_error: Callable[[DSecError], None] | None = None,
    ) -> None:
        super().__init__(connection, method)
        self._on_error = on_error
        self.incoming = {stream: Incoming(self, stream) for stream in streams}
        self.stdin = Outgoing(self._send_stdin)
        self.payload: bytes | None = None
        self.error: Exception | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    async def until(self, condition: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait for `condition`.

        :raises DeadlineExceededError: nothing at all happened to the call for `timeout` seconds; it was cancelled.
        """
        while not condition():
            waiter: asyncio.Future[None] = self.connection.loop.create_future()
            self._waiters.add(waiter)
            try:
                async with asyncio.timeout(timeout):
                    await waiter
            except TimeoutError:
                error = DeadlineExceededError(
                    f"cannot wait longer for {self.method}: no progress within {timeout} s; it was cancelled",
                    method=self.method,
                    timeout_s=timeout,
                )
                self.abandon(error)
                raise error from None
            finally:
                self._waiters.discard(waiter)

    async def answer(self, timeout: float | None = None) -> bytes:
        """The payload of the RESULT. Data that nobody reads can keep it from coming."""
        await self.until(lambda: self.ended, timeout)
        if self.error is not None:
            raise self.error
        assert self.payload is not None
        return self.payload

    async def write(
        self, data: bytes | bytearray | memoryview, end: bool = False, timeout: float | None = None
    ) -> bool:
        """Send on stdin once the server has room. False when the call no longer takes any."""
        await self.until(lambda: self.stdin.drained, timeout)
        if self.stdin.closed:
            return False
        self.stdin.offer(data, end)
        await self.until(lambda: self.stdin.drained, timeout)
        return True

    def event(self, payload: bytes) -> None:
        """Tell the server something about the call."""
        if not self.ended:
            self.connection.send(encode(Kind.EVENT, self.number, payload))

    def cancel(self) -> None:
        """Ask the server to end the call; it still answers, and with all that came before."""
        if not self.ended:
            self.connection.send(encode(Kind.CANCEL, self.number))

    def abandon(self, error: Exception) -> None:
        """Nobody wants the call any more; whoever still waits for it gets `error`."""
        if not self.ended:
            self.connection.abandon(self)
            self.error = error
            self._finish()

    def on_data(self, stream: int, payload: bytes, end: bool) -> None:
        incoming = self.incoming.get(stream)
        if incoming is None:
            raise WireError(f"cannot accept data on stream {stream} of {self.method}: the call has no such stream")
        incoming.put(payload, end)
        self._wake()

    def on_credit(self, stream: int, amount: int) -> None:
        if stream == STDIN:
            self.stdin.grant(amount)
            self._wake()

    def on_result(self, payload: bytes) -> None:
        self.payload = payload
        self._finish()

    def on_error(self, error: DSecError) -> None:
        self.error = error
        if self._on_error is not None:
            self._on_error(error)
        self._finish()

    def _finish(self) -> None:
        self.ended = True
        self.stdin.stop()
        for incoming in self.incoming.values():
            incoming.ended = True
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
