"""The channel against a scripted init at the other end of a socket pair."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dsec.drivers.container.channel import MAX_CALLS, Channel, Successor, ended_error, receive_buffer
from libdsec.protocol import frames
from libdsec.protocol.errors import InvalidArgumentError, QuotaExceededError, SandboxFailedError, UnavailableError
from libdsec.protocol.frames import END, HEADER_SIZE, MAX_PAYLOAD, STDOUT, Frame, Kind

TIMEOUT_S = 10.0


class Caller:
    def __init__(self, congested: bool = False) -> None:
        self.frames: list[tuple[str, Any]] = []
        self.congested = congested
        self.resume: Callable[[], None] | None = None

    def data(self, stream: int, payload: bytes, flags: int) -> bool:
        self.frames.append(("data", payload))
        return not self.congested

    def when_drained(self, resume: Callable[[], None]) -> None:
        self.resume = resume

    def credit(self, stream: int, amount: int) -> None:
        self.frames.append(("credit", amount))

    def event(self, payload: bytes) -> None:
        self.frames.append(("event", payload))

    def result(self, payload: bytes) -> None:
        self.frames.append(("result", payload))

    def error(self, payload: bytes) -> None:
        self.frames.append(("error", msgspec.msgpack.decode(payload)["code"]))


class Init:
    """The other end."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, kind: Kind, call: int, payload: bytes = b"", stream: int = 0, flags: int = 0) -> None:
        self.sock.send(frames.encode(kind, call, payload, stream, flags))

    async def next(self) -> Frame:
        loop = asyncio.get_running_loop()
        packet = await asyncio.wait_for(loop.sock_recv(self.sock, HEADER_SIZE + MAX_PAYLOAD), TIMEOUT_S)
        return frames.decode_packet(packet)


@asynccontextmanager
async def channel(
    first_call: int = 1, successor: Successor | None = None
) -> AsyncIterator[tuple[Channel, Init, list[str]]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    lost: list[str] = []
    made = Channel(
        asyncio.get_running_loop(), ours, receive_buffer(), lost.append, first_call=first_call, successor=successor
    )
    try:
        yield made, Init(theirs), lost
    finally:
        made.end(ended_error("s", "the test is over"))
        theirs.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - what it looks at has no event
            await asyncio.sleep(0)


async def test_calls_and_answers_find_each_other() -> None:
    async with channel() as (chan, init, lost):
        init.send(Kind.HELLO, 0, b"\x80")
        await chan.ready
        one, two = Caller(), Caller()
        chan.call("exec", {"argv": ["a"]}, one, False)
        chan.call("exec", {"argv": ["b"]}, two, False)
        first, second = await init.next(), await init.next()
        assert msgspec.msgpack.decode(first.payload) == {"method": "exec", "args": {"argv": ["a"]}}
        assert first.call != second.call
        init.send(Kind.DATA, second.call, b"out", STDOUT, END)
        init.send(Kind.RESULT, second.call, b"\x80")
        init.send(Kind.ERROR, first.call, msgspec.msgpack.encode({"code": "conflict", "message": "m", "details": {}}))
        await until(lambda: len(one.frames) == 1 and len(two.frames) == 2)
        assert two.frames == [("data", b"out"), ("result", b"\x80")]
        assert one.frames == [("error", "conflict")]
        acks = [await init.next(), await init.next()]
        assert [(a.kind, a.call) for a in acks] == [(Kind.ACK, second.call), (Kind.ACK, first.call)]
        assert lost == []


async def test_input_credit_events_and_cancel_pass() -> None:
    async with channel() as (chan, init, _):
        caller = Caller()
        call = chan.call("exec", {}, caller, True)
        number = (await init.next()).call
        call.data(1, b"in", END)
        call.credit(STDOUT, 7)
        call.event(b"\x80")
        call.abandon()
        kinds = [await init.next() for _ in range(4)]
        assert [frame.kind for frame in kinds] == [Kind.DATA, Kind.CREDIT, Kind.EVENT, Kind.CANCEL]
        assert kinds[0].end
        init.send(Kind.CREDIT, number, (5).to_bytes(4, "little"), 1)
        init.send(Kind.EVENT, number, b"\x81")
        init.send(Kind.EVENT, 0, b"\x80")
        init.send(Kind.RESULT, number, b"\x80")
        await until(lambda: len(caller.frames) == 3)
        assert caller.frames == [("credit", 5), ("event", b"\x81"), ("result", b"\x80")]
        call.cancel()
        init.send(Kind.DATA, number, b"late", STDOUT)
        assert (await init.next()).kind is Kind.ACK


async def test_a_congested_caller_stops_the_reading_and_resumes_it() -> None:
    async with channel() as (chan, init, _):
        slow, quick = Caller(congested=True), Caller()
        chan.call("exec", {}, slow, True)
        chan.call("exec", {}, quick, False)
        first, second = await init.next(), await init.next()
        init.send(Kind.DATA, first.call, b"x", STDOUT)
        init.send(Kind.RESULT, second.call, b"\x80")
        await until(lambda: slow.resume is not None)
        await asyncio.sleep(0)
        assert quick.frames == []
        slow.congested = False
        assert slow.resume is not None
        slow.resume()
        await until(lambda: quick.frames != [])


async def test_a_full_socket_queues_and_then_refuses() -> None:
    async with channel() as (chan, init, lost):
        caller = Caller()
        call = chan.call("exec", {}, caller, True)
        for _ in range(80):
            call.data(1, b"x" * 200_000, 0)
        with pytest.raises(UnavailableError, match="has not taken"):
            chan.call("exec", {}, Caller(), False)
        assert (await init.next()).kind is Kind.CALL
        for _ in range(80):
            assert len((await init.next()).payload) == 200_000
        await until(lambda: chan._queued == 0)
        chan.call("exec", {}, Caller(), False)
        assert (await init.next()).kind is Kind.CALL
        assert lost == []


async def test_bounds_of_a_call() -> None:
    async with channel() as (chan, _, __):
        with pytest.raises(InvalidArgumentError):
            chan.call("exec", {"argv": ["x" * MAX_PAYLOAD]}, Caller(), False)
        for _ in range(MAX_CALLS):
            chan.call("p", {}, Caller(), False)
        with pytest.raises(QuotaExceededError):
            chan.call("p", {}, Caller(), False)


@pytest.mark.parametrize(
    "packet",
    [
        b"short",
        frames.encode(Kind.DATA, 99, b"x", STDOUT),
        frames.encode(Kind.RESULT, 0, b"\x80"),
        frames.encode(Kind.CREDIT, 1, b"abc", 1),
        frames.encode(Kind.CANCEL, 1),
        frames.encode(Kind.CALL, 1, b"\x80"),
        frames.encode(Kind.DATA, 1, b"xy", STDOUT) + b"more",
    ],
)
async def test_a_broken_init_is_lost_and_its_calls_end(packet: bytes) -> None:
    async with channel() as (chan, init, lost):
        init.send(Kind.HELLO, 0, b"\x80")
        await chan.ready
        caller = Caller()
        chan.call("exec", {}, caller, False)
        init.sock.send(packet)
        await until(lambda: lost != [])
        assert caller.frames == []
        chan.end(SandboxFailedError("gone"))
        assert caller.frames == [("error", "sandbox_failed")]
        with pytest.raises(SandboxFailedError, match="gone"):
            chan.call("exec", {}, Caller(), False)
        assert len(lost) == 1


async def test_an_init_that_goes_is_noticed_after_its_last_words() -> None:
    async with channel() as (chan, init, lost):
        caller = Caller()
        chan.call("exec", {}, caller, False)
        number = (await init.next()).call
        init.send(Kind.RESULT, number, b"\x80")
        init.sock.close()
        await until(lambda: lost != [])
        assert caller.frames == [("result", b"\x80")]
        assert chan.ready.cancelled()


async def test_an_answer_of_a_call_with_a_tag_is_acknowledged_by_who_records_it() -> None:
    async with channel() as (chan, init, _):
        caller, other = Caller(), Caller()
        call = chan.call("exec", {}, caller, False, "main#1")
        chan.call("exec", {}, other, False)
        tagged, untagged = await init.next(), await init.next()
        assert msgspec.msgpack.decode(tagged.payload) == {"method": "exec", "args": {}, "tag": "main#1"}
        init.send(Kind.RESULT, tagged.call, b"\x80")
        init.send(Kind.RESULT, untagged.call, b"\x80")
        assert ((ack := await init.next()).kind, ack.call) == (Kind.ACK, untagged.call)
        call.acknowledge()
        call.acknowledge()
        assert ((ack := await init.next()).kind, ack.call) == (Kind.ACK, tagged.call)
        chan.call("exec", {}, Caller(), False)
        assert (await init.next()).kind is Kind.CALL


class Successors:
    """What a successor is told, and the callers that it gives."""

    def __init__(self) -> None:
        self.known: list[tuple[str, bool]] = []
        self.callers: dict[str, Caller] = {}
        self.calls: dict[str, Any] = {}

    def __call__(self, tag: str, running: bool, answerer: Any) -> Caller | None:
        self.known.append((tag, running))
        self.calls[tag] = answerer
        return self.callers.get(tag)


def known(tag: Any, running: Any) -> bytes:
    return msgspec.msgpack.encode({"known": tag, "running": running})


def hello(epoch: str) -> bytes:
    return msgspec.msgpack.encode({"generation": 1, "role": "init", "epoch": epoch})


async def test_a_successor_hears_what_is_known_and_nothing_that_was_left_unread() -> None:
    told = Successors()
    told.callers = {"a": Caller(), "b": Caller()}
    async with channel(100, Successor("ours", told)) as (chan, init, lost):
        init.send(Kind.DATA, 5, b"unread", STDOUT)
        init.send(Kind.RESULT, 5, b"\x80")
        init.send(Kind.HELLO, 0, hello("between"))
        init.send(Kind.EVENT, 5, known("a", False))
        init.send(Kind.DATA, 5, b"half of it", STDOUT)
        init.send(Kind.HELLO, 0, hello("ours"))
        init.send(Kind.EVENT, 5, known("a", False))
        init.send(Kind.DATA, 5, b"out", STDOUT, END)
        init.send(Kind.RESULT, 5, b"\x80")
        init.send(Kind.EVENT, 7, known("b", True))
        init.send(Kind.EVENT, 8, known("nobody", True))
        ping = Caller()
        chan.call("ping", {}, ping, False)
        number = (await init.next()).call
        assert number == 100
        init.send(Kind.RESULT, number, b"\x80")
        await until(lambda: ping.frames != [])
        chan.named()
        assert told.known == [("a", False), ("b", True), ("nobody", True)]
        assert told.callers["a"].frames == [("data", b"out"), ("result", b"\x80")]
        assert told.callers["b"].frames == []
        init.send(Kind.DATA, 8, b"unheard", STDOUT)
        credit = await init.next()
        assert (credit.kind, credit.call, frames.credit_amount(credit)) == (Kind.CREDIT, 8, 7)
        init.send(Kind.RESULT, 8, b"\x80")
        assert [(await init.next()).call for _ in range(2)] == [100, 8]
        told.calls["a"].acknowledge()
        assert ((ack := await init.next()).kind, ack.call) == (Kind.ACK, 5)
        told.calls["b"].cancel()
        assert ((cancel := await init.next()).kind, cancel.call) == (Kind.CANCEL, 7)
        assert lost == []
        init.send(Kind.HELLO, 0, hello("ours"))
        await until(lambda: lost != [])


@pytest.mark.parametrize("payload", [b"\xc1", b"\x80", known(1, True), known("a", 1)])
async def test_an_init_that_does_not_name_its_calls_rightly_is_lost(payload: bytes) -> None:
    async with channel(100, Successor("ours", Successors())) as (_, init, lost):
        init.send(Kind.HELLO, 0, hello(""))
        init.send(Kind.EVENT, 5, payload)
        await until(lambda: lost != [])


async def test_who_leaves_a_channel_ends_no_call_and_has_said_what_is_recorded() -> None:
    async with channel() as (chan, init, lost):
        open_one, ended = Caller(), Caller()
        chan.call("exec", {}, open_one, False)
        chan.call("exec", {}, ended, False)
        first, second = await init.next(), await init.next()
        assert first.call == 1
        init.send(Kind.RESULT, second.call, b"\x80")
        await until(lambda: ended.frames != [])
        chan.detach(UnavailableError("closing"))
        assert ((ack := await init.next()).kind, ack.call) == (Kind.ACK, second.call)
        assert init.sock.recv(1) == b""
        assert open_one.frames == []
        with pytest.raises(UnavailableError, match="closing"):
            chan.call("exec", {}, Caller(), False)
        assert lost == []
