"""The link against a scripted fork server at the other end of a socket pair."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dsec.drivers.container.launch import Record, kill_recorded
from dsec.drivers.container.link import Link, connect
from dsec.linux.processes import start_time
from libdsec.protocol import frames
from libdsec.protocol.errors import ConflictError, UnavailableError
from libdsec.protocol.frames import HEADER_SIZE, MAX_PAYLOAD, Frame, Kind

TIMEOUT_S = 10.0


class Server:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)

    async def next(self) -> tuple[Frame, list[int]]:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self.sock.fileno(), ready.set)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await ready.wait()
        finally:
            loop.remove_reader(self.sock.fileno())
        data, descriptors, _, _ = socket.recv_fds(self.sock, HEADER_SIZE + MAX_PAYLOAD, 4)
        return frames.decode_packet(data), list(descriptors)

    def answer(self, call: int, values: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        packet = frames.encode(Kind.RESULT, call, msgspec.msgpack.encode(values))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self.sock.sendmsg([packet], rights)

    def refuse(self, call: int, code: str) -> None:
        body = {"code": code, "message": "cannot do it", "details": {}}
        self.sock.send(frames.encode(Kind.ERROR, call, msgspec.msgpack.encode(body)))

    def event(self, **values: Any) -> None:
        self.sock.send(frames.encode(Kind.EVENT, 0, msgspec.msgpack.encode(values)))


class Peers:
    def __init__(self, link: Link, server: Server) -> None:
        self.link, self.server = link, server
        self.exits: list[tuple[str, int]] = []
        self.lost: list[str] = []


@asynccontextmanager
async def peers() -> AsyncIterator[Peers]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    exits: list[tuple[str, int]] = []
    lost: list[str] = []
    link = Link(asyncio.get_running_loop(), ours, lambda *end: exits.append(end), lost.append)
    made = Peers(link, Server(theirs))
    made.exits, made.lost = exits, lost
    try:
        yield made
    finally:
        link.close("the test is over")
        theirs.close()


def descriptors_open() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_descriptors_go_both_ways() -> None:
    async with peers() as p:
        reading, writing = os.pipe()
        call = asyncio.ensure_future(p.link.call("layer.hold", {"key": "k"}, TIMEOUT_S, (writing,)))
        frame, (theirs,) = await p.server.next()
        assert msgspec.msgpack.decode(frame.payload) == {"method": "layer.hold", "args": {"key": "k"}}
        p.server.answer(frame.call, {"a": 1}, (theirs, theirs))
        answer = await call
        assert answer.values == {"a": 1}
        os.write(answer.descriptors[1], b"x")
        assert os.read(reading, 1) == b"x"
        for descriptor in (reading, writing, theirs, *answer.descriptors):
            os.close(descriptor)


async def test_refusals_and_exits_are_told() -> None:
    async with peers() as p:
        call = asyncio.ensure_future(p.link.call("layer.drop", {"key": "k"}, TIMEOUT_S))
        frame, _ = await p.server.next()
        p.server.event(event="exited", id="s", status=9)
        p.server.event(event="something new")
        p.server.refuse(frame.call, "conflict")
        with pytest.raises(ConflictError):
            await call
        assert p.exits == [("s", 9)]


async def test_descriptors_of_an_answer_that_nobody_waits_for_are_closed() -> None:
    async with peers() as p:
        before = descriptors_open()
        call = asyncio.ensure_future(p.link.call("sandbox.create", {}, TIMEOUT_S))
        frame, _ = await p.server.next()
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        p.server.answer(frame.call, {}, (p.server.sock.fileno(), p.server.sock.fileno()))
        other = asyncio.ensure_future(p.link.call("sandbox.list", {}, TIMEOUT_S))
        frame, _ = await p.server.next()
        p.server.answer(frame.call, {})
        await other
        assert descriptors_open() == before


async def test_an_answer_that_crosses_the_cancel_is_closed_too() -> None:
    async with peers() as p:
        before = descriptors_open()
        call = asyncio.ensure_future(p.link.call("sandbox.create", {}, TIMEOUT_S))
        frame, _ = await p.server.next()
        p.server.answer(frame.call, {}, (p.server.sock.fileno(),))
        p.link._readable()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert descriptors_open() == before


async def test_a_burst_waits_for_the_socket_and_what_is_given_up_meanwhile_never_goes() -> None:
    async with peers() as p:
        args = {"padding": b"x" * 100_000}
        calls = [asyncio.ensure_future(p.link.call("sandbox.create", args, TIMEOUT_S)) for _ in range(60)]
        await asyncio.sleep(0)
        calls[-1].cancel()
        seen = []
        for _ in range(59):
            frame, _ = await p.server.next()
            seen.append(frame.call)
            p.server.answer(frame.call, {})
        assert seen == list(range(1, 60))
        await asyncio.gather(*calls[:-1])
        with pytest.raises(BlockingIOError):
            p.server.sock.recv(1)


async def test_no_answer_in_time_and_a_lost_server_are_unavailable() -> None:
    async with peers() as p:
        with pytest.raises(UnavailableError, match="no answer"):
            await p.link.call("sandbox.kill", {}, 0.01)
        call = asyncio.ensure_future(p.link.call("sandbox.kill", {}, TIMEOUT_S))
        await asyncio.sleep(0)
        p.server.sock.close()
        with pytest.raises(UnavailableError):
            await call
        assert len(p.lost) == 1
        with pytest.raises(UnavailableError):
            await p.link.call("sandbox.kill", {}, TIMEOUT_S)
        with pytest.raises(UnavailableError):
            await p.link.hello


@pytest.mark.parametrize(
    "packet", [b"short", frames.encode(Kind.EVENT, 0, b"\xc1"), frames.encode(Kind.HELLO, 0, b"\xc1")]
)
async def test_a_broken_server_is_left(packet: bytes) -> None:
    async with peers() as p:
        call = asyncio.ensure_future(p.link.call("sandbox.kill", {}, TIMEOUT_S))
        await asyncio.sleep(0)
        p.server.sock.send(packet)
        with pytest.raises(UnavailableError):
            await call
        assert not p.link.open


def test_nobody_listening_is_no_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert connect(str(tmp_path_factory.mktemp("f") / "none.sock")) is None


def test_only_the_process_that_was_written_down_is_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("f") / "pid"
    assert not kill_recorded(str(path))
    path.write_text("nonsense")
    assert not kill_recorded(str(path))
    # this very pid, as it would be had another process had it before
    path.write_bytes(msgspec.json.encode(Record(os.getpid(), start_time(os.getpid()) - 1)))
    assert not kill_recorded(str(path))
