"""One connection to a server: frames in, frames out, and which call each belongs to."""

from __future__ import annotations

import asyncio
from collections import deque
from importlib.metadata import version
from typing import cast

import msgspec

from ..protocol.calls import Hello
from ..protocol.errors import DSecError, OutcomeUnknownError, UnavailableError, UnsupportedOperationError, WireError
from ..protocol.frames import GENERATION, MAX_PAYLOAD, Decoder, Frame, Kind, credit_amount, encode
from .codec import decode_error
from .exchange import Exchange

_CLOSE_TIMEOUT_S = 5.0
_OLDEST_GENERATION = 1

_decode_hello = msgspec.msgpack.Decoder(Hello).decode


class Connection(asyncio.Protocol):
    """Made by an `Endpoint`. `hello` must have returned before the first `start`.

    After a loss it stays lost: every call of it has ended with an error and `start` raises.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str) -> None:
        self.loop = loop
        self.peer = peer
        self.made_at = 0.0
        """When it was made, by the clock of whoever made it."""
        self._transport: asyncio.Transport | None = None
        self._decoder = Decoder()
        self._calls: dict[int, Exchange] = {}
        self._last_number = 0
        self._writable = False
        self._outbox: deque[tuple[bytes, int]] = deque()
        """Frames that the socket has no room for, each with the number of the call it opens, or 0."""
        self._hello: asyncio.Future[Hello] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._reason: DSecError | None = None

    @property
    def usable(self) -> bool:
        return self._reason is None and self._transport is not None and not self._transport.is_closing()

    async def hello(self, timeout: float) -> Hello:
        """Exchange the first frames.

        :raises UnavailableError: the peer closed or did not answer in time.
        :raises UnsupportedOperationError: the server is of a generation that this library does not speak.
        """
        ours = Hello(GENERATION, "client", version=version("libdsec"), max_payload=MAX_PAYLOAD)
        self.send(encode(Kind.HELLO, 0, msgspec.msgpack.encode(ours)))
        try:
            async with asyncio.timeout(timeout):
                theirs = await asyncio.shield(self._hello)
        except TimeoutError:
            self._fail(UnavailableError(f"cannot use {self.peer}: the server said no hello within {timeout:g} s"))
            raise self._lost() from None
        if theirs.generation < _OLDEST_GENERATION:
            error = UnsupportedOperationError(
                f"cannot use {self.peer}: the server speaks generation {theirs.generation} and this library needs "
                f"at least {_OLDEST_GENERATION}; upgrade the server",
                generation=theirs.generation,
            )
            self._fail(error)
            raise error
        return theirs

    def start(self, exchange: Exchange, payload: bytes) -> None:
        """Send the CALL of `exchange`.

        :raises UnavailableError: the connection is lost; nothing was sent.
        """
        if not self.usable:
            raise self._lost()
        frame = encode(Kind.CALL, self._last_number + 1, payload)
        self._last_number = exchange.number = self._last_number + 1
        self._calls[exchange.number] = exchange
        self._write(frame, exchange.number)

    def send(self, frame: bytes) -> None:
        """A frame of a call that was started. Dropped in silence after a loss: the call has been told of it."""
        if self._reason is None:
            self._write(frame, 0)

    def abandon(self, exchange: Exchange) -> None:
        """Cancel a call. What still comes of it is taken and dropped."""
        if self._calls.get(exchange.number) is not exchange:
            return
        rest = Exchange(self, exchange.method)
        rest.number = exchange.number
        self._calls[exchange.number] = rest
        self.send(encode(Kind.CANCEL, exchange.number))

    async def close(self, error: DSecError) -> None:
        """End the connection; calls under way get `error`. Bounded in time."""
        self._fail(error)
        if self._transport is not None:
            await asyncio.wait((self._closed,), timeout=_CLOSE_TIMEOUT_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # a cast: transports of other loops (uvloop's) are none of asyncio's classes
        self._transport = made = cast(asyncio.Transport, transport)
        # with no allowance at all we are told at once when the socket is full: see the package's first rule
        made.set_write_buffer_limits(high=0)
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        while self._outbox and self._writable:
            frame, _ = self._outbox.popleft()
            self._put(frame)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._on_frame(frame)
        except WireError as error:
            self._fail(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(
            UnavailableError(f"cannot reach {self.peer}: the connection was lost" + (f" ({exc})" if exc else ""))
        )
        if not self._closed.done():
            self._closed.set_result(None)

    def _write(self, frame: bytes, opens: int) -> None:
        if self._writable:
            self._put(frame)
        else:
            self._outbox.append((frame, opens))

    def _put(self, frame: bytes) -> None:
        assert self._transport is not None
        self._transport.write(frame)

    def _on_frame(self, frame: Frame) -> None:
        kind = frame.kind
        if not self._hello.done():
            self._on_hello(frame)
            return
        exchange = self._calls.get(frame.call)
        if exchange is None:
            if frame.call > self._last_number:
                raise WireError(f"cannot accept a {kind.name} frame for call {frame.call}: it was never made")
        elif kind is Kind.RESULT:
            del self._calls[frame.call]
            exchange.on_result(frame.payload)
        elif kind is Kind.DATA:
            exchange.on_data(frame.stream, frame.payload, frame.end)
        elif kind is Kind.CREDIT:
            exchange.on_credit(frame.stream, credit_amount(frame))
        elif kind is Kind.EVENT:
            exchange.on_event(frame.payload)
        elif kind is Kind.ERROR:
            error = decode_error(frame.payload)
            del self._calls[frame.call]
            exchange.on_error(error)
        else:
            raise WireError(f"cannot accept a {kind.name} frame from a server")

    def _on_hello(self, frame: Frame) -> None:
        if frame.kind is not Kind.HELLO or frame.call != 0:
            raise WireError(f"cannot accept a {frame.kind.name} frame before HELLO: {self.peer} is not a DSec server")
        try:
            self._hello.set_result(_decode_hello(frame.payload))
        except msgspec.DecodeError as error:
            raise WireError(f"cannot read the hello of {self.peer}: {error}") from None

    def _lost(self) -> DSecError:
        if isinstance(self._reason, WireError):
            return self._reason
        return UnavailableError(self._reason.message if self._reason else f"cannot reach {self.peer}: not connected")

    def _fail(self, reason: DSecError) -> None:
        """The connection is over: tell every call, once."""
        if self._reason is not None:
            return
        self._reason = reason
        unsent = {opens for _, opens in self._outbox if opens}
        self._outbox.clear()
        calls, self._calls = self._calls, {}
        for number, exchange in calls.items():
            exchange.on_error(self._loss_of(exchange, number in unsent))
        if not self._hello.done():
            self._hello.set_exception(self._lost())
            self._hello.exception()  # whoever waits in hello() gets it; nobody may be waiting
        if self._transport is not None:
            self._transport.abort()

    def _loss_of(self, exchange: Exchange, unsent: bool) -> DSecError:
        assert self._reason is not None
        if unsent:
            return UnavailableError(f"cannot call {exchange.method}: it was not sent; {self._reason.message}")
        if isinstance(self._reason, WireError):
            return WireError(self._reason.message, method=exchange.method)
        return OutcomeUnknownError(
            f"cannot tell whether {exchange.method} ran: {self._reason.message}; look before repeating it",
            method=exchange.method,
        )
