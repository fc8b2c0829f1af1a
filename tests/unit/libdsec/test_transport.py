"""Frames however they are cut, broken peers, and what is sent when."""

from __future__ import annotations

import asyncio
import itertools
import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libdsec import DSecClient
from libdsec._transport.codec import codec
from libdsec._transport.connection import Connection
from libdsec._transport.endpoint import UnixEndpoint, run_directory, socket_path
from libdsec._transport.exchange import Collecting
from libdsec.errors import (
    ClientClosedError,
    InvalidArgumentError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedOperationError,
    WireError,
)
from libdsec.protocol.calls import METHODS, Empty, Hello, SandboxListRequest, ServerInfo, encode_call
from libdsec.protocol.exec import ExecRequest
from libdsec.protocol.frames import MAX_PAYLOAD, Decoder, Frame, Kind, encode
from libdsec.protocol.nodes import NodeStatus
from libdsec.protocol.steps import StepTag
from libdsec.testing import FakeCall, FakeServer

FRAMES = st.lists(
    st.builds(
        Frame,
        st.sampled_from(list(Kind)),
        st.integers(0, 2**64 - 1),
        st.binary(max_size=300),
        st.integers(0, 2**16 - 1),
        st.integers(0, 1),
    ),
    max_size=20,
)
NODE = NodeStatus("n", "e", ("container",), 1, 0, 1, 0, 0, True)


@given(frames=FRAMES, cuts=st.lists(st.integers(0, 7000)))
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames, cuts):
    data = b"".join(encode(f.kind, f.call, f.payload, f.stream, f.flags) for f in frames)
    decoder, seen, places = Decoder(), [], sorted({0, len(data), *(c for c in cuts if c < len(data))})
    for start, end in itertools.pairwise(places):
        seen += decoder.feed(data[start:end])
    assert seen == frames
    assert decoder.pending == 0


@given(garbage=st.binary(max_size=200))
def test_garbage_is_frames_or_a_wire_error(garbage):
    decoder = Decoder()
    try:
        for frame in decoder.feed(garbage):
            assert len(frame.payload) <= MAX_PAYLOAD
    except WireError:
        pass


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_prebuilt_call_is_the_vocabularys(method):
    request = Empty() if METHODS[method][0] is Empty else SandboxListRequest({"a": "b"}, include_final=True)
    assert codec(method).encode(request) == encode_call(method, request)
    for step in (StepTag("main", 7), StepTag("cli"), StepTag("key:x", 1, 3, again=True)):
        assert codec(method).encode(request, step) == encode_call(method, request, step)


def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent():
    with pytest.raises(InvalidArgumentError, match="limit is 262144"):
        codec("exec").encode(ExecRequest("s", ("x" * MAX_PAYLOAD,)))
    with pytest.raises(InvalidArgumentError):
        codec("exec").encode(ExecRequest("s", ("\udcff",)))


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        encode(Kind.RESULT, 999),
        encode(Kind.CALL, 1),
        encode(Kind.ACK, 1),
        encode(Kind.ERROR, 1, b"\xc1"),
        encode(Kind.RESULT, 1, b"\xc1"),
        encode(Kind.CREDIT, 1, b"123"),
        encode(Kind.DATA, 1, b"unasked", 2),
    ],
    ids=["text", "unknown-call", "call", "ack", "bad-error", "bad-result", "bad-credit", "unasked-data"],
)
def test_a_broken_server_is_left(with_fake, raw):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("server.info")
        async def _(call: FakeCall) -> ServerInfo:
            server.send_raw(raw)
            await asyncio.Event().wait()
            raise AssertionError

        with pytest.raises(WireError):
            await client.server_info()

    with_fake(use)


def test_frames_of_ended_calls_are_dropped(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("server.info")
        async def _(call: FakeCall) -> ServerInfo:
            if len(server.calls) == 2:  # of the first call, which has ended
                server.send_raw(encode(Kind.DATA, 1, b"late", 2) + encode(Kind.RESULT, 1, b"again"))
            return ServerInfo("v", 1, 1, NODE)

        for _ in range(2):
            assert (await client.server_info()).version == "v"
        assert server.connections == 1

    with_fake(use)


def test_a_server_of_an_older_generation_is_refused():
    async def main() -> None:
        async with FakeServer() as server:
            server.generation = 0
            with pytest.raises(UnsupportedOperationError, match="generation 0"):
                await DSecClient(endpoint=server).open()
            server.generation = 99
            async with DSecClient(endpoint=server):
                pass

    asyncio.run(main())


def test_repeatable_calls_survive_a_lost_connection(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("server.info")
        async def _(call: FakeCall) -> ServerInfo:
            if len(server.calls) == 1:
                server.drop()
                await asyncio.Event().wait()
            return ServerInfo("v", 1, 1, NODE)

        assert (await client.server_info()).version == "v"
        assert server.connections == 2

    with_fake(use)


def test_a_call_that_was_never_sent_surely_did_not_run():
    """The socket is full of an earlier call's bytes, so the second call waits in the outbox when the peer dies."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        _, connection = await loop.create_connection(lambda: Connection(loop, "a peer"), sock=ours)
        theirs.sendall(encode(Kind.HELLO, 0, msgspec.msgpack.encode(Hello(1, "apiserver"))))
        await connection.hello(5)
        calls = [Collecting(connection, "exec") for _ in range(4)]
        for call in calls:
            connection.start(call, bytes(MAX_PAYLOAD))
        theirs.close()
        kinds = []
        for call in calls:
            with pytest.raises((OutcomeUnknownError, UnavailableError)) as caught:
                await call.answer(5)
            kinds.append(type(caught.value))
        assert kinds[0] is OutcomeUnknownError
        assert kinds[-1] is UnavailableError
        with pytest.raises(UnavailableError):
            connection.start(Collecting(connection, "exec"), b"")

    asyncio.run(main())


def test_no_server_is_unavailable_and_says_what_to_do(tmp_path):
    async def main() -> None:
        with pytest.raises(UnavailableError, match="dsec serve"):
            await UnixEndpoint(f"{tmp_path}/none.sock").connect(5)

    asyncio.run(main())


def test_a_server_that_never_says_hello(tmp_path):
    async def main() -> None:
        def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)

        writers: list[asyncio.StreamWriter] = []
        server = await asyncio.start_unix_server(silent, f"{tmp_path}/s")
        async with server:
            with pytest.raises(UnavailableError, match="no hello"):
                await UnixEndpoint(f"{tmp_path}/s").connect(0.05)
            for writer in writers:
                writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("url", ["http://x", "unix://host/path", "unix:relative", "/run/api.sock", "unix://"])
def test_urls_that_are_none(url):
    with pytest.raises(InvalidArgumentError, match="unix:///"):
        socket_path(url)


def test_urls_may_hold_any_path():
    assert socket_path("unix:///run/a%20b/api.sock") == "/run/a b/api.sock"


def test_a_client_that_is_not_open_says_so():
    async def main() -> None:
        async with FakeServer() as server:
            client = DSecClient(endpoint=server)
            with pytest.raises(ClientClosedError):
                await client.server_info()
            await client.open()
            await client.close()
            await client.close()
            with pytest.raises(ClientClosedError):
                await client.server_info()

    asyncio.run(main())


def test_many_calls_share_vain_attempts_to_connect(with_fake, clock):
    async def use(server: FakeServer, client: DSecClient) -> None:
        attempts = 0

        async def vain(timeout: float) -> Connection:
            nonlocal attempts
            attempts += 1
            await asyncio.sleep(0)
            raise UnavailableError("cannot reach it")

        server.drop()
        server.connect = vain  # type: ignore[method-assign]
        client._channel.clock = clock
        answers = await asyncio.gather(*(client.server_info() for _ in range(50)), return_exceptions=True)
        assert {type(answer) for answer in answers} <= {UnavailableError, OutcomeUnknownError}
        assert 50 < clock.now < 61  # all of them waited, and no longer than one
        assert 50 < attempts < 150
        seen = attempts
        with pytest.raises(UnavailableError):
            await client.server_info()  # a later one tries again, with time of its own
        assert attempts > seen + 50

    with_fake(use)


def test_a_server_that_was_away_at_open_can_be_opened_later():
    async def main() -> None:
        async with FakeServer() as server:
            server.reachable = False
            client = DSecClient(endpoint=server)
            with pytest.raises(UnavailableError):
                await client.open()
            server.reachable = True
            await client.open()
            await client.close()

    asyncio.run(main())


def test_a_relative_run_directory_is_refused(monkeypatch):
    monkeypatch.setenv("DSEC_RUN_DIR", "run")
    with pytest.raises(InvalidArgumentError, match="must be absolute"):
        run_directory()
    monkeypatch.setenv("DSEC_RUN_DIR", "")
    assert run_directory() == "/run/dsec"
