"""Clients good and bad on the socket: what each is told, and what others notice of it (nothing)."""

from __future__ import annotations

import asyncio
import os
import stat

import msgspec
import pytest

from dsec.testing.fake_node import FakeNode, fake_node
from dsec.testing.wire_client import WireClient
from libdsec.protocol import frames
from libdsec.protocol.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    PermissionDeniedError,
    SandboxNotFoundError,
    UnsupportedOperationError,
)
from libdsec.protocol.frames import MAX_PAYLOAD, STDOUT, WINDOW, Kind

TIMEOUT_S = 20.0


async def create(client: WireClient) -> str:
    return str((await client.call("sandbox.create", spec={"image": "tiny:1"}))["id"])


async def until(condition: object) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110 - what it looks at has no event
            await asyncio.sleep(0)


async def refused(node: FakeNode, raw: bytes, *, greet: bool = True) -> str:
    """Send bytes that no client should; what the server says before it closes."""
    async with node.client(greet=greet) as client:
        client.send_bytes(raw)
        async with asyncio.timeout(TIMEOUT_S):
            await client.closed.wait()
        assert client.connection_error is not None
        assert client.connection_error.code == "wire"
        return client.connection_error.message


async def test_hello_goes_both_ways_and_the_socket_is_private(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        await client.call("server.info")
        assert client.hello is not None
        assert (client.hello.generation, client.hello.role) == (frames.GENERATION, "apiserver")
        assert stat.S_IMODE(os.stat(node.socket).st_mode) == 0o600


async def test_broken_clients_are_told_and_disconnected(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as good:
        call = frames.encode(Kind.CALL, 1, msgspec.msgpack.encode({"method": "server.info", "args": {}}))
        assert "before HELLO" in await refused(node, call, greet=False)
        assert "unknown kind" in await refused(node, b"\0" * 4 + b"\x63" + b"\0" * 11)
        assert "limit" in await refused(node, (MAX_PAYLOAD + 1).to_bytes(4, "little") + b"\x05" + b"\0" * 11)
        assert "unknown flags" in await refused(node, b"\0" * 4 + b"\x05\x80" + b"\0" * 10)
        assert "cannot read a CALL" in await refused(node, frames.encode(Kind.CALL, 1, b"\xc1"))
        assert "second HELLO" in await refused(
            node, frames.encode(Kind.HELLO, 0, b"\x82\xaageneration\x01\xa4role\xa1x")
        )
        assert "HELLO" in await refused(node, frames.encode(Kind.HELLO, 0, b"\x80"), greet=False)
        assert "RESULT" in await refused(node, frames.encode(Kind.RESULT, 1, b"\x80"))
        assert "the number is in use" in await refused(node, frames.encode(Kind.CALL, 0, b"\x80"))
        await good.call("server.info")
        assert len(node.service.connections) == 1


async def test_frames_cut_anywhere_are_the_same_frames(run_dir: str) -> None:
    one = frames.encode(Kind.CALL, 77, msgspec.msgpack.encode({"method": "server.info", "args": {}}))
    async with fake_node(run_dir) as node, node.client() as client:
        call = client.start("server.info")
        await call.answer()
        call.number = 77
        client._calls[77] = call
        for byte in one:
            client.send_bytes(bytes([byte]))
            await asyncio.sleep(0)
        assert (await call.answer())["generation"] == frames.GENERATION


async def test_unknown_methods_fields_and_sandboxes_are_typed_errors(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        with pytest.raises(UnsupportedOperationError, match=r"sandbox\.fly"):
            await client.call("sandbox.fly")
        with pytest.raises(InvalidArgumentError, match="unknown field `nonsense`"):
            await client.call("server.info", nonsense=1)
        with pytest.raises(InvalidArgumentError, match="sandbox"):
            await client.call("sandbox.inspect")
        for name in ("nothing", "fakenode" + "a" * 16, "othernod" + "a" * 16):
            with pytest.raises(SandboxNotFoundError):
                await client.call("sandbox.inspect", sandbox=name)
        sandbox = await create(client)
        for args in (
            {"argv": []},
            {"argv": ["true"], "cwd": "relative"},
            {"argv": ["true"], "env": {"A=B": "1"}},
            {"argv": ["true"], "timeout_s": -1},
            {"argv": ["tr\0ue"]},
            {"argv": ["true"], "limit": {"head": -1}},
            {"argv": "true"},
            {"argv": ["true"], "pty": True, "rows": 0},
        ):
            with pytest.raises(InvalidArgumentError):
                await client.call("exec", sandbox=sandbox, **args)


async def test_a_bug_is_an_internal_error_with_an_incident(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_node(run_dir) as node, node.client() as client:

        def broken() -> None:
            raise ZeroDivisionError("secret detail")

        monkeypatch.setattr(node.images, "list", broken)
        with pytest.raises(InternalError) as caught:
            await client.call("image.list")
        assert caught.value.details["incident"] in str(caught.value)
        assert "secret" not in str(caught.value)
        await client.call("server.info")


async def test_strangers_are_refused(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_node(run_dir) as node:

        def nobody(pid: int, uid: int, gid: int) -> object:
            raise PermissionDeniedError(f"cannot use this node: uid {uid} is nobody")

        monkeypatch.setattr(node.service, "authenticate", nobody)
        async with node.client() as client:
            async with asyncio.timeout(TIMEOUT_S):
                await client.closed.wait()
            assert client.connection_error is not None
            assert client.connection_error.code == "permission_denied"


async def test_many_calls_on_one_connection(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        calls = [client.start("exec", sandbox=sandbox, argv=["echo", str(n)]) for n in range(200)]
        for number, call in enumerate(calls):
            await call.answer()
            assert call.stdout == f"{number}\n".encode()


async def test_input_streams_and_windows(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        cat = client.start("exec", sandbox=sandbox, argv=["cat"], stdin=True, stream=True)
        cat.feed(b"one ", end=False)
        cat.feed(b"two")
        assert (await cat.answer())["exit_code"] == 0
        assert cat.stdout == b"one two"
        write = client.start("file.write", sandbox=sandbox, path="/f")
        write.feed(b"content")
        assert (await write.answer())["size"] == 7
        read = client.start("file.read", sandbox=sandbox, path="/f")
        await read.answer()
        assert read.stdout == b"content"


async def test_input_to_what_stands_still_lets_it_go_on(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        cat = client.start("exec", sandbox=sandbox, argv=["cat"], stdin=True, stream=True)
        cat.feed(b"one ", end=False)
        assert (await client.call("sandbox.pause", sandbox=sandbox))["state"] == "paused"
        cat.feed(b"two")
        assert (await cat.answer())["exit_code"] == 0
        assert cat.stdout == b"one two"
        assert (await client.call("sandbox.inspect", sandbox=sandbox))["state"] == "running"


async def test_a_client_beyond_its_window_is_disconnected(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client, node.client() as other:
        sandbox = await create(other)
        # a program that does not read grants nothing
        stuck = client.start("exec", sandbox=sandbox, argv=["sleep", "1000"], stdin=True, stream=True)
        for _ in range(WINDOW // 65_536 + 1):
            stuck.feed(b"x" * 65_536, end=False)
        async with asyncio.timeout(TIMEOUT_S):
            await client.closed.wait()
        assert client.connection_error is not None
        assert "window" in client.connection_error.message
        await other.run(sandbox, "true")


async def test_output_stops_at_the_window(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        flood = client.start("exec", sandbox=sandbox, argv=["yes"], stream=True)
        taken = 0
        while taken < WINDOW:
            taken += len((await flood.next()).payload)
        for _ in range(50):
            await client.call("server.info")
        assert flood.inbox.empty()
        flood.grant(STDOUT, 16_384)
        assert len((await flood.next()).payload) == 16_384
        flood.send(Kind.CANCEL)
        assert (await flood.answer())["ended"] == "canceled"


async def test_a_client_that_reads_nothing_holds_only_itself_up(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as other:
        sandbox = await create(other)
        async with node.client(reading=False) as deaf:
            # each may send a window unasked: together more than the connection's high-water mark
            for _ in range(60):
                deaf.start("exec", sandbox=sandbox, argv=["yes"], stream=True)
            connections = node.service.connections
            await until(lambda: any(c.congested for c in connections))
            (congested,) = [c for c in connections if c.congested]
            for _ in range(50):
                await other.run(sandbox, "echo", "quick")
            size = congested._transport.get_write_buffer_size()
            assert size < 12 * 1024 * 1024
        await until(lambda: len(node.service.connections) == 1)
        await until(lambda: node.edge.registry.get(sandbox).open == set())


async def test_a_lost_client_ends_its_streams_and_not_its_commands(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as other:
        sandbox = await create(other)
        async with node.client() as client:
            client.start("exec", sandbox=sandbox, argv=["yes"], stream=True)
            client.start("exec", sandbox=sandbox, argv=["sleep", "0.05"])
            client.start("sandbox.create", spec={"image": "tiny:1"}, idempotency_key="later")
            await client.call("server.info")
            record = node.edge.registry.get(sandbox)
            assert len(record.open) == 2
        await until(lambda: record.open == set())
        entries = (await other.call("sandbox.logs", sandbox=sandbox))["entries"]
        assert sorted(e["detail"]["ended"] for e in entries if e["event"] == "exec") == ["canceled", "exited"]
        again = await other.call("sandbox.create", spec={"image": "tiny:1"}, idempotency_key="later")
        assert again["state"] == "running"
        assert node.driver.created == 2


async def test_a_canceled_create_leaves_nothing(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        node.driver.gate = asyncio.Event()
        creating = client.start("sandbox.create", spec={"image": "tiny:1"})
        await client.call("server.info")
        creating.send(Kind.CANCEL)
        creating.send(Kind.CANCEL)
        with pytest.raises(DeadlineExceededError):
            await creating.answer()
        assert node.edge.slots.taken == 0
        assert len(node.edge.registry) == 0


async def test_a_cancel_in_the_same_packet_as_its_call_is_answered(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        node.driver.gate = asyncio.Event()
        await client.call("server.info")
        creating = client.start("sandbox.create", spec={"image": "tiny:1"})
        creating.send(Kind.CANCEL)
        with pytest.raises(DeadlineExceededError):
            await creating.answer()
        assert node.edge.slots.taken == 0


async def test_frames_for_ended_calls_are_dropped_in_silence(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        call = client.start("server.info")
        await call.answer()
        for kind in (Kind.CANCEL, Kind.ACK, Kind.EVENT, Kind.DATA):
            call.send(kind)
        call.grant(STDOUT, 5)
        await client.call("server.info")
