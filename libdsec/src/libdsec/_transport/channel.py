"""Calls for the rest of the SDK: on the connection there is, or on a new one when it was lost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from ..protocol.errors import ClientClosedError, DSecError, OutcomeUnknownError, UnavailableError
from ..protocol.frames import STDERR, STDOUT
from .codec import codec
from .connection import Connection
from .endpoint import Endpoint
from .exchange import Collecting, EventHandler
from .streaming import Streaming

DEFAULT_TIMEOUT_S = 60.0
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """The RESULT of a call and what its output streams held."""

    value: Any
    stdout: bytes
    stderr: bytes


class Channel:
    """Shared by a client and all that came out of it. Reconnects by the next call, never by itself."""

    def __init__(self, endpoint: Endpoint, connect_timeout: float) -> None:
        self._endpoint = endpoint
        self._connect_timeout = connect_timeout
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._failure: DSecError | None = None
        """How the last attempt to connect failed. A new object each time, by which waiters tell whether it is new."""
        self._open = False

    async def open(self) -> None:
        """Connect. Again is fine.

        :raises UnavailableError: no server.
        """
        self._open = True
        try:
            await self._connected()
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
        timeout: float | None = DEFAULT_TIMEOUT_S,
        repeatable: bool = False,
    ) -> Any:
        """The answer of a call without streams. `repeatable` says that doing it twice is the same as once."""
        return (await self.collect(method, args, timeout=timeout, repeatable=repeatable)).value

    async def collect(
        self,
        method: str,
        args: msgspec.Struct,
        *,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        extend: bool = False,
        stdin: bytes | None = None,
        bound: int = 0,
        repeatable: bool = False,
        on_event: EventHandler | None = None,
    ) -> Answer:
        """The answer of a call together with what it sent on streams 2 and 3, at most `bound` bytes each.

        With `extend` the timeout starts anew whenever data or events come.
        :raises UnavailableError: the call surely did not run.
        :raises OutcomeUnknownError: the connection was lost after it was sent.
        :raises DeadlineExceededError: no answer within `timeout` seconds; it was cancelled.
        """
        how = codec(method)
        payload = how.encode(args)
        for attempt in range(1, _ATTEMPTS + 1):
            connection = self._connection
            if connection is None or not connection.usable:
                connection = await self._connected()
            try:
                exchange = Collecting(connection, how.name, bound, on_event)
                connection.start(exchange, payload)
                if stdin is not None:
                    exchange.give(stdin)
                value = how.decode(await exchange.answer(timeout, extend))
                return Answer(value, exchange.collected(STDOUT), exchange.collected(STDERR))
            except (UnavailableError, OutcomeUnknownError) as error:
                again = not connection.usable and self._open and attempt < _ATTEMPTS
                if not again or not (repeatable or isinstance(error, UnavailableError)):
                    raise
        raise AssertionError("unreachable")

    async def stream(self, method: str, args: msgspec.Struct, streams: tuple[int, ...]) -> Streaming:
        """A call with data under way, started. It must be run to its end or abandoned."""
        payload = codec(method).encode(args)
        connection = await self._connected()
        exchange = Streaming(connection, method, streams)
        connection.start(exchange, payload)
        return exchange

    async def _connected(self) -> Connection:
        known = self._failure
        async with self._connecting:
            if not self._open:
                raise ClientClosedError("cannot call: this client is not open; use `async with DSecClient()` or open()")
            if self._connection is not None and self._connection.usable:
                return self._connection
            if self._failure is not None and self._failure is not known:
                # another call tried in vain while this one waited: many callers are not to try one after the other
                raise type(self._failure)(self._failure.message, **self._failure.details)
            try:
                self._connection = await self._endpoint.connect(self._connect_timeout)
            except DSecError as error:
                self._failure = error
                raise
            return self._connection
