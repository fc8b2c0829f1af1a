"""A server to test against: real frames over a socket pair, answers by a script.

    async with FakeServer() as server:
        @server.answers("exec")
        async def _(call):
            await call.send(STDOUT, b"hello")
            return ExecAnswer("exited", 0, stdout=OutputInfo(5, 5))

        async with DSecClient(endpoint=server) as client: ...

`listen` and `serving` put it at a Unix socket instead, for clients elsewhere. It keeps the rules of docs/wire.md as a
server does (hello, windows, credit, one end a call) and fails loudly when the client breaks one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, Self, cast

import msgspec

from ._transport.connection import Connection
from .protocol.calls import METHODS, Hello, decode_call
from .protocol.errors import DSecError, InternalError, UnavailableError, UnsupportedOperationError, WireError
from .protocol.frames import (
    DATA_CHUNK,
    END,
    GENERATION,
    WINDOW,
    Decoder,
    Frame,
    Kind,
    credit_amount,
    encode,
    encode_credit,
)
from .protocol.steps import StepTag

Handler = Callable[["FakeCall"], Awaitable[msgspec.Struct]]


class FakeCall:
    """One call as its handler sees it."""

    def __init__(self, peer: _Peer, number: int, method: str, args: Any, step: StepTag | None) -> None:
        self._peer = peer
        self._number = number
        self._granted: dict[int, int] = {}
        self._changed = asyncio.Event()
        self.method = method
        self.args = args
        """The decoded request."""
        self.step = step
        """Its place in the command log, as the client said it."""
        self.canceled = asyncio.Event()
        self.stdin: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Pieces that came on stream 1, then None. `receive` grants what it takes; the queue does not."""
        self.events: asyncio.Queue[Any] = asyncio.Queue()

    async def send(self, stream: int, data: bytes, end: bool = False) -> None:
        """Data to the client, waiting for its credit."""
        rest = memoryview(data)
        while rest:
            room = self._granted.setdefault(stream, WINDOW)
            if room == 0:
                self._changed.clear()
                await self._changed.wait()
                continue
            size = min(len(rest), DATA_CHUNK, room)
            self._granted[stream] = room - size
            self.send_unasked(stream, bytes(rest[:size]), end and size == len(rest))
            rest = rest[size:]
        if end and not data:
            self.send_unasked(stream, b"", True)

    async def send_value(self, stream: int, value: Any) -> None:
        """One DATA frame that is a value of its own, encoded here, waiting for the client's credit."""
        data = msgspec.msgpack.encode(value)
        while self._granted.setdefault(stream, WINDOW) < len(data):
            self._changed.clear()
            await self._changed.wait()
        self._granted[stream] -= len(data)
        self.send_unasked(stream, data)

    def send_unasked(self, stream: int, data: bytes, end: bool = False) -> None:
        """Data whether or not the client granted it."""
        self._peer.send(encode(Kind.DATA, self._number, data, stream, END if end else 0))

    def event(self, event: msgspec.Struct) -> None:
        self._peer.send(encode(Kind.EVENT, self._number, msgspec.msgpack.encode(event)))

    async def receive(self) -> bytes:
        """All of stream 1 up to its end."""
        pieces = []
        while (piece := await self.stdin.get()) is not None:
            pieces.append(piece)
            self._peer.take(self._number, len(piece))
        return b"".join(pieces)

    def on_credit(self, stream: int, amount: int) -> None:
        self._granted[stream] = self._granted.get(stream, WINDOW) + amount
        self._changed.set()


class FakeServer:
    """An `Endpoint` in memory. Leaving its `async with` ends its connections."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._peers: list[_Peer] = []
        self._tasks: asyncio.TaskGroup
        self._listener: asyncio.Server | None = None
        self.calls: list[tuple[str, Any]] = []
        """Every call that came, in order, with its request."""
        self.steps: list[StepTag | None] = []
        """The place in the command log of each of `calls`."""
        self.canceled: list[int] = []
        self.connections = 0
        self.reachable = True
        self.generation = GENERATION

    def answers(self, method: str) -> Callable[[Handler], Handler]:
        """Registers what answers a method."""

        def register(handler: Handler) -> Handler:
            self._handlers[method] = handler
            return handler

        return register

    def drop(self) -> None:
        """Close every connection, as a server that dies does."""
        for peer in self._peers:
            peer.close()
        self._peers.clear()

    def send_raw(self, data: bytes) -> None:
        """Bytes to every client, be they frames or not."""
        for peer in self._peers:
            peer.send(data)

    async def connect(self, timeout: float) -> Connection:
        if not self.reachable:
            raise UnavailableError("cannot reach the fake server: it is set to be unreachable")
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        await loop.create_connection(lambda: _Peer(self), sock=ours)
        _, connection = await loop.create_connection(lambda: Connection(loop, "the fake server"), sock=theirs)
        await connection.hello(timeout)
        return connection

    async def listen(self, path: str) -> None:
        """Accept connections at a Unix socket too."""
        self._listener = await asyncio.get_running_loop().create_unix_server(lambda: _Peer(self), path)

    def accept(self, peer: _Peer) -> None:
        self._peers.append(peer)
        self.connections += 1

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            self._listener.close()
        self.drop()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            if error is None or group.exceptions != (error,):
                raise
            raise error from None  # the body's own, as it was

    def start(self, peer: _Peer, call: FakeCall, number: int) -> asyncio.Task[None]:
        return self._tasks.create_task(self._serve(peer, call, number))

    async def _serve(self, peer: _Peer, call: FakeCall, number: int) -> None:
        handler = self._handlers.get(call.method)
        try:
            if handler is None:
                raise UnsupportedOperationError(f"cannot answer {call.method}: the fake server has no script for it")
            frame = encode(Kind.RESULT, number, msgspec.msgpack.encode(await handler(call)))
        except DSecError as error:
            frame = encode(Kind.ERROR, number, msgspec.msgpack.encode(error.body()))
        except Exception as error:
            body = InternalError(f"cannot answer {call.method}: {error!r}").body()
            frame = encode(Kind.ERROR, number, msgspec.msgpack.encode(body))
        peer.end(number, frame)


@contextlib.contextmanager
def serving(path: str) -> Iterator[FakeServer]:
    """A fake server at a Unix socket, in a thread of its own: for clients without an event loop, and for commands."""
    server = FakeServer()
    over, ready = asyncio.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        async with server:
            await server.listen(path)
            loops.append(asyncio.get_running_loop())
            ready.set()
            await over.wait()

    with concurrent.futures.ThreadPoolExecutor(1, "dsec-fake") as executor:
        done = executor.submit(asyncio.run, main())
        done.add_done_callback(lambda _: ready.set())
        ready.wait(30)
        if not loops:
            done.result(0)  # how it failed
        try:
            yield server
        finally:
            loops[0].call_soon_threadsafe(over.set)
            done.result(30)


class _Peer(asyncio.Protocol):
    """The server's side of one connection."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._decoder = Decoder()
        self._calls: dict[int, FakeCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._windows: dict[int, int] = {}
        self._greeted = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.accept(self)
        hello = Hello(self._server.generation, "apiserver", version="fake")
        self.send(encode(Kind.HELLO, 0, msgspec.msgpack.encode(hello)))

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            if not self._greeted:
                self._greeted = frame.kind is Kind.HELLO
                assert self._greeted, f"the client began with {frame.kind.name}"
            elif frame.kind is Kind.CALL:
                self._on_call(frame)
            else:
                self._on_frame(frame, self._calls.get(frame.call))

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()

    def send(self, frame: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(frame)

    def take(self, number: int, size: int) -> None:
        """Grant again what a handler has taken of stdin."""
        if size:
            self._windows[number] += size
            self.send(encode_credit(number, 1, size))

    def end(self, number: int, frame: bytes) -> None:
        if self._calls.pop(number, None) is not None:
            self.send(frame)

    def close(self) -> None:
        self._transport.abort()
        self._calls.clear()
        for task in self._tasks:
            task.cancel()

    def _on_call(self, frame: Frame) -> None:
        call = decode_call(frame.payload)
        args = msgspec.msgpack.decode(call.args, type=METHODS[call.method][0])
        self._server.calls.append((call.method, args))
        self._server.steps.append(call.step)
        self._windows[frame.call] = WINDOW
        self._calls[frame.call] = made = FakeCall(self, frame.call, call.method, args, call.step)
        task = self._server.start(self, made, frame.call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_frame(self, frame: Frame, call: FakeCall | None) -> None:
        if frame.kind is Kind.CANCEL:
            self._server.canceled.append(frame.call)
        if call is None:
            return
        if frame.kind is Kind.DATA:
            self._windows[frame.call] -= len(frame.payload)
            if self._windows[frame.call] < 0:
                raise WireError("the client sent more on stdin than was granted")
            if frame.payload:
                call.stdin.put_nowait(frame.payload)
            if frame.end:
                call.stdin.put_nowait(None)
        elif frame.kind is Kind.CREDIT:
            call.on_credit(frame.stream, credit_amount(frame))
        elif frame.kind is Kind.CANCEL:
            call.canceled.set()
        elif frame.kind is Kind.EVENT:
            call.events.put_nowait(msgspec.msgpack.decode(frame.payload))
