"""Calls for the rest of the SDK: on the connection there is, or on a new one when it was lost.

A lost connection costs a call nothing but time: as long as its patience lasts it is said again, as it was, where that
runs nothing twice. That is so when it surely did not run, when it is `repeatable`, and when it is a numbered step:
the server's command log then gives its recorded outcome, or joins it while it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from ..protocol.errors import (
    ClientClosedError,
    DSecError,
    OutcomeUnknownError,
    PermissionDeniedError,
    UnavailableError,
)
from ..protocol.steps import StepTag
from .clock import Clock, LoopClock
from .codec import Codec, codec
from .connection import Connection
from .endpoint import Endpoint
from .exchange import Answer, Collecting, EventHandler
from .outage import STABLE_S, Outage
from .streaming import Streaming

DEFAULT_TIMEOUT_S = 60.0
RECONNECT_TIMEOUT_S = 60.0


class Order(Protocol):
    """Of calls that a server takes in the order of their numbers alone."""

    def blocked(self, n: int) -> bool:
        """Whether a call before `n` is still to be sent."""

    async def turn(self, n: int) -> None:
        """Wait until that may have changed. Bounded by the patience of the calls before."""

    def sent(self, n: int) -> None:
        """The call was sent."""

    def lost(self, n: int) -> None:
        """It was lost, and will be sent again."""


@dataclass(slots=True)
class Sending:
    """A call that was encoded, and how its answer is waited for (as `Channel.collect` says)."""

    how: Codec
    payload: bytes
    timeout: float | None
    extend: bool
    stdin: bytes | None
    bound: int
    repeatable: bool
    on_event: EventHandler | None = None
    patience: float | None = None
    order: Order | None = None
    n: int = 0
    sent: bool = False
    """Whether it may have come to the server."""
    retold: bytes = b""
    """What is said instead of `payload` once that may have come there, where that is to be said once alone."""


class Channel:
    """Shared by a client and all that came out of it. Reconnects by the next call, never by itself."""

    def __init__(
        self,
        endpoint: Endpoint,
        connect_timeout: float,
        reconnect_timeout: float = RECONNECT_TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._connect_timeout = connect_timeout
        self._reconnect_timeout = reconnect_timeout
        self.clock = clock or LoopClock()
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._failure: DSecError | None = None
        """How the last attempt to connect failed. A new object each time, by which waiters tell whether it is new."""
        self._open = False

    async def open(self) -> None:
        """Connect, by one attempt. Again is fine.

        :raises UnavailableError: no server.
        """
        self._open = True
        try:
            await self._connected(Outage(self.clock, 0.0))
        except BaseException:
            self._open = False
            raise

    async def close(self) -> None:
        """End the connection. Again is fine; calls under way end with an error."""
        self._open = False
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(UnavailableError("cannot wait for an answer: this client was closed"))

    async def call(
        self,
        method: str,
        args: msgspec.Struct,
        *,
        step: StepTag | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        repeatable: bool = False,
        patience: float | None = None,
    ) -> Any:
        """The answer of a call without streams. `repeatable` says that doing it twice is the same as once."""
        answer = await self.collect(method, args, step=step, timeout=timeout, repeatable=repeatable, patience=patience)
        return answer.value

    async def collect(
        self,
        method: str,
        args: msgspec.Struct,
        *,
        step: StepTag | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        extend: bool = False,
        stdin: bytes | None = None,
        bound: int = 0,
        repeatable: bool = False,
        on_event: EventHandler | None = None,
        patience: float | None = None,
    ) -> Answer:
        """The answer of a call together with what it sent on streams 2 and 3, at most `bound` bytes each.

        With `extend` the timeout starts anew whenever data or events come. `patience` is for how many seconds a
        server that is away is waited for, None the client's own time.
        :raises UnavailableError: the call surely did not run.
        :raises OutcomeUnknownError: the connection was lost after it was sent, and it could not be said again.
        :raises DeadlineExceededError: no answer within `timeout` seconds; it was cancelled.
        """
        how = codec(method)
        return await self.send(
            Sending(
                how,
                how.encode(args, step),
                timeout,
                extend,
                stdin,
                bound,
                repeatable or (step is not None and step.n > 0),
                on_event,
                patience,
            )
        )

    async def send(self, call: Sending) -> Answer:
        """As `collect`, of what was encoded."""
        outage: Outage | None = None
        while True:
            connection = self._connection
            if connection is None or not connection.usable:
                outage = outage or self.outage(call.patience)
                connection = await self._connected_in_time(outage, call.patience)
            if call.order is not None and call.order.blocked(call.n):
                await call.order.turn(call.n)
                continue
            try:
                exchange = Collecting(connection, call.how.name, call.bound, call.on_event)
                connection.start(exchange, call.payload)
                call.sent = True
                if call.order is not None:
                    call.order.sent(call.n)
                if call.stdin is not None:
                    exchange.give(call.stdin)
                return exchange.whole(call.how.decode(await exchange.answer(call.timeout, call.extend)))
            except (UnavailableError, OutcomeUnknownError) as error:
                outage = outage or self.outage(call.patience)
                if not self._again(connection, error, call.repeatable):
                    raise outage.verdict(error) from None
                if call.order is not None:
                    call.order.lost(call.n)
                if isinstance(error, OutcomeUnknownError):
                    outage.unknown = error
                    call.payload = call.retold or call.payload
                call.sent = outage.unknown is not None
                if self.clock.time() - connection.made_at >= STABLE_S:
                    outage.restart()
                await outage.pause(error)

    async def stream(
        self, method: str, args: msgspec.Struct, streams: tuple[int, ...], *, step: StepTag | None = None
    ) -> Streaming:
        """A call with data under way, started. It must be run to its end or abandoned."""
        return await self.start(codec(method), codec(method).encode(args, step), streams)

    async def start(
        self,
        how: Codec,
        payload: bytes,
        streams: tuple[int, ...],
        order: Order | None = None,
        n: int = 0,
        on_error: Callable[[DSecError], None] | None = None,
    ) -> Streaming:
        """As `stream`, of what was encoded. `on_error` is told how it ends, where it ends badly."""
        outage = self.outage()
        while True:
            connection = await self._connected(outage)
            if order is not None and order.blocked(n):
                await order.turn(n)
                continue
            exchange = Streaming(connection, how.name, streams, on_error)
            try:
                connection.start(exchange, payload)
                return exchange
            except UnavailableError as error:  # lost in this very moment; nothing was sent
                await outage.pause(error)

    def outage(self, patience: float | None = None) -> Outage:
        """For whoever has to wait for the server from now on."""
        return Outage(self.clock, self._reconnect_timeout if patience is None else patience)

    def _again(self, connection: Connection, error: DSecError, repeatable: bool) -> bool:
        """Whether a call that ended so is said again."""
        if not self._open:
            return False
        surely_not = isinstance(error, UnavailableError)
        if not connection.usable:
            return repeatable or surely_not
        # of a server that ends there is a next one; and what was joined did not run, so that it is our turn
        return repeatable and surely_not and any(error.details.get(why) is True for why in ("closing", "joined"))

    async def _connected_in_time(self, outage: Outage, patience: float | None) -> Connection:
        """As `_connected`. A call with a patience of its own waits no longer for the attempts of others either."""
        if patience is None:
            return await self._connected(outage)
        try:
            async with asyncio.timeout(outage.left):
                return await self._connected(outage)
        except TimeoutError:
            raise outage.verdict(UnavailableError(f"cannot reach the server within {patience:g} s")) from None

    async def _connected(self, outage: Outage) -> Connection:
        known = self._failure
        # who holds the lock tries again and again for all: many callers are not to try one after the other
        async with self._connecting:
            while True:
                if not self._open:
                    raise ClientClosedError(
                        "cannot call: this client is not open; use `async with DSecClient()` or open()"
                    )
                if self._connection is not None and self._connection.usable:
                    return self._connection
                failure = self._failure
                if failure is not None and failure is not known and outage.over:
                    # somebody tried in vain while this call waited, and its own time is over
                    raise outage.verdict(type(failure)(failure.message, **failure.details))
                try:
                    connection = await self._endpoint.connect(self._connect_timeout)
                    connection.made_at = self.clock.time()
                    self._connection = connection
                    return connection
                except (UnavailableError, PermissionDeniedError) as error:
                    self._failure = error
                    if isinstance(error, PermissionDeniedError) and self._connection is None:
                        raise
                    # a server that was there comes back: until then nobody listens, or its socket is not ours yet
                    await outage.pause(error)
