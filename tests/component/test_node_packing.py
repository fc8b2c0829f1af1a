"""sandbox.pack_diff and sandbox.diff through a real socket, over a fake driver and a fake store."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from dsec.testing.fake_node import FakeNode, fake_node
from dsec.testing.wire_client import WireCall, WireClient
from libdsec.protocol.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    InvalidArgumentError,
    ReplayDivergedError,
    SandboxFailedError,
    SandboxStateError,
    UnsupportedOperationError,
)
from libdsec.protocol.frames import Kind

TIMEOUT_S = 10.0


async def create(client: WireClient, **spec: object) -> str:
    info = await client.call("sandbox.create", spec={"image": "tiny:1", **spec})
    return str(info["id"])


async def state(client: WireClient, sandbox: str) -> str:
    return str((await client.call("sandbox.inspect", sandbox=sandbox))["state"])


async def reading(node: FakeNode) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not node.images.packing.is_set():  # noqa: ASYNC110  # set in a thread
            await asyncio.sleep(0.001)


async def write(node: FakeNode, sandbox: str, *paths: str) -> None:
    for path in paths:
        node.driver.instances[sandbox].files[path] = b"x"


async def test_it_is_packed_and_goes_on(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        await write(node, sandbox, "/a", "/b/c")
        packed = await client.call("sandbox.pack_diff", sandbox=sandbox, ref="w:1")
        assert (packed["image"]["ref"], packed["image"]["kind"], packed["layer"]["files"]) == ("w:1", "workspace", 2)
        assert await state(client, sandbox) == "running"
        made = await client.call("sandbox.create", spec={"image": "tiny:1", "workspace": "w:1"})
        assert made["state"] == "running"
        events = (await client.call("sandbox.logs", sandbox=sandbox))["entries"]
        assert [event["detail"]["image"] for event in events if event["event"] == "packed"] == ["w:1"]


async def test_while_it_stands_it_says_so_and_calls_wait(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        node.images.pack_gate.clear()
        packing = client.start("sandbox.pack_diff", sandbox=sandbox, ref="w:1")
        await reading(node)
        assert await state(client, sandbox) == "pausing"
        run = client.start("exec", sandbox=sandbox, argv=["true"])
        pause = client.start("sandbox.pause", sandbox=sandbox)
        await asyncio.sleep(0.01)
        assert await state(client, sandbox) == "pausing"
        node.images.pack_gate.set()
        await packing.answer()
        assert (await run.answer())["exit_code"] == 0
        await pause.answer()


async def test_a_paused_one_stays_paused(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        await client.call("sandbox.pause", sandbox=sandbox)
        await client.call("sandbox.pack_diff", sandbox=sandbox, ref="w:1")
        assert await state(client, sandbox) == "paused"
        assert node.driver.instances[sandbox].paused


@pytest.mark.parametrize("how", ["stop", "die"])
async def test_one_that_ends_meanwhile_is_not_packed(run_dir: str, how: str) -> None:
    from dsec.drivers.base import End

    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        node.images.pack_gate.clear()
        packing = client.start("sandbox.pack_diff", sandbox=sandbox, ref="w:1")
        await reading(node)
        if how == "stop":
            assert (await client.call("sandbox.stop", sandbox=sandbox))["state"] == "stopped"
        else:
            node.driver.instances[sandbox].die(End("memory", "its memory was used up", {}))
        with pytest.raises(SandboxFailedError):
            await packing.answer()
        assert [image.ref for image in node.images.list()] == ["tiny:1"]
        with pytest.raises((SandboxStateError, SandboxFailedError)):
            await client.call("sandbox.pack_diff", sandbox=sandbox, ref="w:1")


async def test_one_that_is_given_up_leaves_nothing(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        node.images.pack_gate.clear()
        packing = client.start("sandbox.pack_diff", sandbox=sandbox, ref="w:1")
        await reading(node)
        packing.send(Kind.CANCEL)
        with pytest.raises(DeadlineExceededError):
            await packing.answer()
        assert [image.ref for image in node.images.list()] == ["tiny:1"]
        assert await state(client, sandbox) == "running"
        assert not node.driver.instances[sandbox].paused


async def test_a_failure_leaves_it_running(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        for error, arguments in (
            (AlreadyExistsError, {"ref": "tiny:1"}),
            (InvalidArgumentError, {"ref": "w"}),
            (UnsupportedOperationError, {"ref": "w:1", "publish": True}),
        ):
            with pytest.raises(error):
                await client.call("sandbox.pack_diff", sandbox=sandbox, **arguments)
            assert await state(client, sandbox) == "running"


async def test_it_is_a_step(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)

        def said(ref: str) -> WireCall:
            return client.step("main", 1, "sandbox.pack_diff", sandbox=sandbox, ref=ref)

        first = await said("w:1").answer()
        await client.call("image.remove", ref="w:1")
        assert await said("w:1").answer() == first, "told from the log"
        with pytest.raises(ReplayDivergedError):
            await said("w:2").answer()


async def test_what_changed_comes_as_arrays(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        assert await client.call("sandbox.diff", sandbox=sandbox) == {"added": 0, "changed": 0, "removed": 0}
        await write(node, sandbox, "/b", "/a")
        call = client.start("sandbox.diff", sandbox=sandbox)
        assert await call.answer() == {"added": 2, "changed": 0, "removed": 0}
        assert [change["path"] for change in msgspec.msgpack.decode(bytes(call.stdout))] == ["/a", "/b"]
        await client.call("sandbox.stop", sandbox=sandbox)
        with pytest.raises(SandboxStateError):
            await client.call("sandbox.diff", sandbox=sandbox)
