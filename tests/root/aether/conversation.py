"""What an edge says to PID 1 and hears from it, many calls at once, under credit."""

from __future__ import annotations

import contextlib
import select
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
from rig import Box, hello

from libdsec.protocol import frames
from libdsec.protocol.errors import DSecError, ErrorBody, from_body
from libdsec.protocol.frames import END, STDERR, STDIN, STDOUT, WINDOW, Frame, Kind

PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
LIMIT = {"head": 65536, "tail": 65536}


@dataclass
class Call:
    number: int
    credit: int = WINDOW
    """Of stream 1, what may still be sent."""
    grants: bool = True
    """Whether what is received is granted again."""
    streams: dict[int, list[bytes]] = field(default_factory=lambda: {STDOUT: [], STDERR: []})
    ended_streams: set[int] = field(default_factory=set)
    result: dict[str, Any] | None = None
    error: DSecError | None = None

    @property
    def over(self) -> bool:
        return self.result is not None or self.error is not None

    @property
    def stdout(self) -> bytes:
        return b"".join(self.streams[STDOUT])

    @property
    def stderr(self) -> bytes:
        return b"".join(self.streams[STDERR])

    @property
    def answer(self) -> dict[str, Any]:
        """The RESULT.

        :raises DSecError: it was an ERROR.
        """
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def how(self) -> tuple[str, int | None, int | None]:
        return self.answer["ended"], self.answer["exit_code"], self.answer["signal"]


class Conversation:
    """Calls on one sandbox's channel. What comes for one call while another is waited for is kept."""

    def __init__(self, box: Box, first: int = 1000) -> None:
        self.box, self._next = box, first
        self.calls: dict[int, Call] = {}
        self.hellos: list[dict[str, Any]] = []
        self.known: list[tuple[int, str, bool]] = []
        """What a successor is told of calls: number, tag, whether it still runs."""

    def start(self, method: str, args: dict[str, Any], number: int | None = None, tag: Any = None) -> Call:
        if number is None:
            number, self._next = self._next, self._next + 1
        call = self.calls[number] = Call(number)
        body = {"method": method, "args": args} | ({} if tag is None else {"tag": tag})
        self.send(Kind.CALL, number, msgspec.msgpack.encode(body))
        return call

    def send(self, kind: Kind, call: int, payload: bytes = b"", stream: int = 0, flags: int = 0) -> None:
        self.post(frames.encode(kind, call, payload, stream, flags))

    def post(self, packet: bytes) -> None:
        while True:
            try:
                return self.box.peer.send(packet)
            except BlockingIOError:
                assert select.select([], [self.box.peer.sock], [], 30)[1], "PID 1 does not read"

    def event(self, call: Call, body: dict[str, Any]) -> None:
        self.send(Kind.EVENT, call.number, msgspec.msgpack.encode(body))

    def cancel(self, call: Call) -> None:
        self.send(Kind.CANCEL, call.number)

    def grant(self, call: Call, stream: int, amount: int) -> None:
        self.post(frames.encode_credit(call.number, stream, amount))

    def feed(self, call: Call, data: bytes, end: bool = True) -> None:
        """Send stdin as far as the receiver takes it."""
        for at in range(0, len(data), frames.DATA_CHUNK):
            chunk = data[at : at + frames.DATA_CHUNK]
            while call.credit < len(chunk) and not call.over:
                self.take()
            if call.over:
                return
            call.credit -= len(chunk)
            self.send(Kind.DATA, call.number, chunk, STDIN)
        if end:
            self.send(Kind.DATA, call.number, b"", STDIN, END)

    def take(self, timeout_s: float = 30.0, ack: bool = True) -> Frame:
        received = self.box.peer.receive(timeout_s)
        assert received is not None, "PID 1 is gone"
        frame, descriptors = received
        assert not descriptors
        if frame.kind is Kind.HELLO:
            self.hellos.append(msgspec.msgpack.decode(frame.payload))
        elif frame.kind is Kind.EVENT and "known" in (news := msgspec.msgpack.decode(frame.payload)):
            self.known.append((frame.call, news["known"], news["running"]))
            self.calls.setdefault(frame.call, Call(frame.call))
        elif frame.call in self.calls:
            self._note(self.calls[frame.call], frame, ack)
        return frame

    def _note(self, call: Call, frame: Frame, ack: bool) -> None:
        if frame.kind is Kind.DATA:
            assert not call.over, "DATA after the answer"
            call.streams[frame.stream].append(frame.payload)
            if frame.end:
                call.ended_streams.add(frame.stream)
            if call.grants and frame.payload:
                self.grant(call, frame.stream, len(frame.payload))
        elif frame.kind is Kind.CREDIT:
            assert frame.stream == STDIN
            call.credit += frames.credit_amount(frame)
        elif frame.kind is Kind.RESULT:
            call.result = msgspec.msgpack.decode(frame.payload)
        elif frame.kind is Kind.ERROR:
            call.error = from_body(msgspec.msgpack.decode(frame.payload, type=ErrorBody))
        if call.over and ack:
            self.send(Kind.ACK, call.number)

    def finish(self, call: Call, ack: bool = True) -> Call:
        while not call.over:
            self.take(ack=ack)
        return call

    def become_successor(self, epoch: str = "2") -> None:
        """Say hello as a new edge that knows the calls of the old one."""
        self.post(hello(epoch))
        before = len(self.hellos)
        while len(self.hellos) == before:
            self.take()

    def take_all(self, quiet_s: float = 0.2) -> None:
        """Take frames until none comes for a while."""
        with contextlib.suppress(TimeoutError):
            while True:
                self.take(quiet_s)

    def do(self, method: str, args: dict[str, Any]) -> Call:
        return self.finish(self.start(method, args))

    def exec(self, argv: str | list[str], **changes: Any) -> Call:
        return self.finish(self.start_exec(argv, **changes))

    def start_exec(self, argv: str | list[str], *, tag: Any = None, **changes: Any) -> Call:
        """A string is a script of /bin/sh."""
        args = {
            "argv": ["/bin/sh", "-c", argv] if isinstance(argv, str) else argv, "env": PATH, "cwd": "/", "user": "root",
            "timeout_ms": 0, "stdin": False, "stream": False, "limit": LIMIT, "pty": False, "rows": 24, "cols": 80,
        }  # fmt: skip
        return self.start("exec", {**args, **changes}, tag=tag)

    def file(self, operation: str, path: str, data: bytes | None = None, **changes: Any) -> Call:
        """A file operation; `data` is what it takes on stream 1."""
        call = self.start_file(operation, path, **changes)
        if data is not None:
            self.feed(call, data)
        return self.finish(call)

    def start_file(self, operation: str, path: str, **changes: Any) -> Call:
        return self.start(f"file.{operation}", {"path": path, "user": "root", "cwd": "/", **changes})

    def wait_for(self, script: str, timeout_s: float = 10.0) -> None:
        """Until a script of the sandbox succeeds."""
        limit = time.monotonic() + timeout_s
        while self.exec(script).answer["exit_code"] != 0:
            assert time.monotonic() < limit, script
            time.sleep(0.01)
