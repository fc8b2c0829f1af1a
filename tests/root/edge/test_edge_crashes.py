"""Processes of the platform killed at awkward moments: typed errors, then all is well, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import pytest
from node_process import NodeProcess

from dsec.testing.wire_client import wire_client
from libdsec.protocol.errors import DeadlineExceededError, UnavailableError

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether")


async def test_a_killed_fork_server_is_replaced_and_its_sandboxes_go_on(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        old = (await client.call("sandbox.create", spec={"image": "tiny:1"}))["id"]
        (fork_server,) = node.fork_servers()
        os.kill(fork_server, signal.SIGKILL)
        node.wait(lambda: fork_server not in node.fork_servers())
        answer, _ = await client.run(old, "true")
        assert answer["exit_code"] == 0
        new = (await client.call("sandbox.create", spec={"image": "tiny:1"}))["id"]
        for sandbox in (old, new):
            answer, _ = await client.run(sandbox, "true")
            assert answer["exit_code"] == 0
            assert (await client.call("sandbox.stop", sandbox=sandbox))["state"] == "stopped"
    node.wait(lambda: node.uppers() == [])


async def test_a_fork_server_killed_while_it_makes_sandboxes(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        for delay in (0.0, 0.001, 0.004, 0.01):
            (fork_server,) = node.fork_servers()
            calls = [client.start("sandbox.create", spec={"image": "tiny:1"}) for _ in range(8)]
            await asyncio.sleep(delay)
            os.kill(fork_server, signal.SIGKILL)
            for call in calls:
                with contextlib.suppress(UnavailableError):
                    await client.call("sandbox.stop", sandbox=(await call.answer())["id"])
            info = await client.call("sandbox.create", spec={"image": "tiny:1"})
            await client.call("sandbox.stop", sandbox=info["id"])
        listed = (await client.call("sandbox.list"))["sandboxes"]
        assert listed == []
    node.wait(lambda: node.uppers() == [])
    node.wait(lambda: len(node.processes()) == 2)


async def test_a_killed_server_leaves_its_sandboxes_to_its_successor(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        sandboxes = [(await client.call("sandbox.create", spec={"image": "tiny:1"}))["id"] for _ in range(5)]
        for sandbox in sandboxes:
            client.step("main", 1, "exec", sandbox=sandbox, argv=["/bin/sh", "-c", "sleep 1; echo done"])
            await client.call("server.info")
        inits = set(node.inits())
        assert len(inits) == 5
        node.crash()
    node.start()
    assert set(node.inits()) == inits
    async with wire_client(node.socket) as client:
        listed = (await client.call("sandbox.list"))["sandboxes"]
        assert {info["id"]: info["state"] for info in listed} == dict.fromkeys(sandboxes, "running")
        for sandbox in sandboxes:
            call = client.step("main", 1, "exec", sandbox=sandbox, argv=["/bin/sh", "-c", "sleep 1; echo done"])
            assert ((await call.answer())["exit_code"], call.stdout) == (0, b"done\n")
            await client.call("sandbox.stop", sandbox=sandbox)
    node.wait(lambda: node.uppers() == [] and node.inits() == [])


async def test_what_was_being_made_is_taken_away(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        await client.call("server.info")
        for _ in range(20):
            client.start("sandbox.create", spec={"image": "tiny:1"})
        await client.call("server.info")
        node.crash()
    node.start()
    async with wire_client(node.socket) as client:
        listed = (await client.call("sandbox.list"))["sandboxes"]
        node.wait(lambda: len(node.inits()) == len(listed) == len(node.uppers()))
        for info in listed:
            assert (await client.run(info["id"], "true"))[0]["exit_code"] == 0
            await client.call("sandbox.stop", sandbox=info["id"])
    node.wait(lambda: node.uppers() == [] and node.inits() == [])


async def test_server_and_fork_server_killed_together(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        made = [(await client.call("sandbox.create", spec={"image": "tiny:1"}))["id"] for _ in range(3)]
        inits = set(node.inits())
        assert len(inits) == 3
        (fork_server,) = node.fork_servers()
        node.crash()
        os.kill(fork_server, signal.SIGKILL)
    node.start()
    for pid in inits:
        node.wait(lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
    async with wire_client(node.socket) as client:
        for sandbox in made:
            info = await client.call("sandbox.inspect", sandbox=sandbox)
            assert (info["state"], info["cause"]) == ("failed", "lost")
        info = await client.call("sandbox.create", spec={"image": "tiny:1"})
        await client.call("sandbox.stop", sandbox=info["id"])
    node.wait(lambda: node.uppers() == [])


async def test_a_hung_fork_server_is_ended_by_the_next_server(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        await client.call("sandbox.create", spec={"image": "tiny:1"})
        (fork_server,) = node.fork_servers()
        os.kill(fork_server, signal.SIGSTOP)
        node.crash()
    node.start()
    assert fork_server not in node.fork_servers()
    node.wait(lambda: len(node.processes()) == 2 and node.inits() == [])
    async with wire_client(node.socket) as client:
        info = await client.call("sandbox.create", spec={"image": "tiny:1"})
        await client.call("sandbox.stop", sandbox=info["id"])


async def test_a_fork_server_that_hangs_is_replaced(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        old = (await client.call("sandbox.create", spec={"image": "tiny:1"}))["id"]
        (fork_server,) = node.fork_servers()
        os.kill(fork_server, signal.SIGSTOP)
        with pytest.raises(DeadlineExceededError):
            await client.call("sandbox.create", spec={"image": "tiny:1"}, timeout_s=0.2)
        assert fork_server not in node.fork_servers()
        answer, _ = await client.run(old, "true")
        assert answer["exit_code"] == 0
        new = (await client.call("sandbox.create", spec={"image": "tiny:1"}))["id"]
        for sandbox in (old, new):
            assert (await client.call("sandbox.stop", sandbox=sandbox))["state"] == "stopped"
    node.wait(lambda: node.uppers() == [] and node.inits() == [])
