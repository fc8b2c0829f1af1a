"""A client that speaks plain frames and does what a test says: also what no decent client would do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from libdsec.protocol import frames
from libdsec.protocol.calls import Hello
from libdsec.protocol.errors import ErrorBody, from_body
from libdsec.protocol.frames import END, STDERR, STDOUT, Frame, Kind

TIMEOUT_S = 20.0
_decode_error = msgspec.msgpack.Decoder(ErrorBody).decode


class WireCall:
    """One call: its frames arrive in `inbox` until it has ended."""

    def __init__(self, client: WireClient, number: int) -> None:
        self._client = client
        self.number = number
        self.inbox: asyncio.Queue[Frame] = asyncio.Queue()
        self.output: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray()}
        self.events: list[Any] = []
        self.input_credit = 0

    def send(self, kind: Kind, payload: bytes = b"", stream: int = 0, flags: int = 0) -> None:
        self._client.send(kind, self.number, payload, stream, flags)

    def grant(self, stream: int, amount: int) -> None:
        self._client.send_bytes(frames.encode_credit(self.number, stream, amount))

    def feed(self, payload: bytes, end: bool = True) -> None:
        self.send(Kind.DATA, payload, frames.STDIN, END if end else 0)

    async def next(self) -> Frame:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.inbox.get()

    async def answer(self, consume: bool = True) -> Any:
        """The RESULT, decoded; output is collected and, if `consume`, granted again.

        :raises DSecError: the answer was an ERROR.
        """
        while True:
            frame = await self.next()
            if frame.kind is Kind.RESULT:
                return msgspec.msgpack.decode(frame.payload)
            if frame.kind is Kind.ERROR:
                raise from_body(_decode_error(frame.payload))
            if frame.kind is Kind.DATA:
                self.output[frame.stream] += frame.payload
                if consume and frame.payload:
                    self.grant(frame.stream, len(frame.payload))
            elif frame.kind is Kind.EVENT:
                self.events.append(msgspec.msgpack.decode(frame.payload))
            elif frame.kind is Kind.CREDIT:
                self.input_credit += frames.credit_amount(frame)

    @property
    def stdout(self) -> bytes:
        return bytes(self.output[STDOUT])


class WireClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._calls: dict[int, WireCall] = {}
        self._next = 1
        self.hello: Hello | None = None
        self.connection_error: ErrorBody | None = None
        """What the server said on call 0 before it closed."""
        self.closed = asyncio.Event()

    def send_bytes(self, raw: bytes) -> None:
        self._writer.write(raw)

    def send(self, kind: Kind, call: int, payload: bytes = b"", stream: int = 0, flags: int = 0) -> None:
        self.send_bytes(frames.encode(kind, call, payload, stream, flags))

    def start(self, method: str, **args: Any) -> WireCall:
        return self._open({"method": method, "args": args})

    def step(self, track: str, n: int, method: str, *, epoch: int = 0, again: bool = False, **args: Any) -> WireCall:
        """A call that names its place in the command log."""
        step = {"track": track, "n": n, "epoch": epoch, "again": again}
        return self._open({"method": method, "args": args, "step": step})

    def _open(self, payload: dict[str, Any]) -> WireCall:
        call = WireCall(self, self._next)
        self._next += 1
        self._calls[call.number] = call
        call.send(Kind.CALL, msgspec.msgpack.encode(payload))
        return call

    async def call(self, method: str, **args: Any) -> Any:
        """:raises DSecError: the answer was an ERROR."""
        return await self.start(method, **args).answer()

    async def run(self, sandbox: str, *argv: str, **options: Any) -> tuple[Any, bytes]:
        """A command and what it printed."""
        call = self.start("exec", sandbox=sandbox, argv=argv, **options)
        return await call.answer(), call.stdout

    async def pump(self) -> None:
        """Hand frames to their calls until the connection ends."""
        decoder = frames.Decoder()
        try:
            while data := await self._reader.read(256 * 1024):
                for frame in decoder.feed(data):
                    self._take(frame)
        except ConnectionError:
            pass  # closed is what it comes to
        finally:
            self.closed.set()

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.HELLO:
            self.hello = msgspec.msgpack.decode(frame.payload, type=Hello)
        elif frame.call == 0 and frame.kind is Kind.ERROR:
            self.connection_error = _decode_error(frame.payload)
        elif frame.call in self._calls:
            self._calls[frame.call].inbox.put_nowait(frame)

    def disconnect(self) -> None:
        """Go away without a word."""
        self._writer.transport.abort()


@asynccontextmanager
async def wire_client(path: str, *, greet: bool = True, reading: bool = True) -> AsyncIterator[WireClient]:
    """A connection; with `reading=False` nobody takes what the server says."""
    reader, writer = await asyncio.open_unix_connection(path)
    client = WireClient(reader, writer)
    if greet:
        hello = Hello(frames.GENERATION, "client", max_payload=frames.MAX_PAYLOAD)
        client.send(Kind.HELLO, 0, msgspec.msgpack.encode(hello))
    pumping = asyncio.ensure_future(client.pump()) if reading else None
    try:
        yield client
    finally:
        client.disconnect()
        if pumping is not None:
            await pumping
