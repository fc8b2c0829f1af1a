"""Callers that go away in the middle of a call, and servers that do: the call said again gets its one outcome."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from fault_node import FaultNode, until
from fault_seed import lose

from libdsec import DSecClient, DSecContainerRunArgs
from libdsec.errors import OutcomeUnknownError
from libdsec.rollout import Rollout
from libdsec.sandbox import Sandbox

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether")
LARGE = b"0123456789abcdef" * 40_000
"""More than a window, and than what a connection takes at once."""


@contextlib.asynccontextmanager
async def attached(node: FaultNode, name: str) -> AsyncIterator[tuple[DSecClient, Rollout, Sandbox]]:
    """A rollout with a sandbox, of a program that may come again."""
    await node.serving()
    async with DSecClient(f"unix://{node.socket}", reconnect_timeout=30) as client:
        rollout = await client.attach(f"{name}-{node.starts}")
        sandbox = await rollout.run_container(DSecContainerRunArgs(container_image="tiny:1"))
        try:
            yield client, rollout, sandbox
        finally:
            await rollout.close()


async def restart(node: FaultNode, fault: str = "") -> None:
    node.crash()
    node.start(fault)
    await node.serving()


async def test_a_pause_that_its_caller_gave_up_leaves_nothing_frozen_that_is_said_to_run(node: FaultNode) -> None:
    async with attached(node, "given-up") as (_, _, sandbox), asyncio.timeout(30):
        for number in range(8):
            pausing = asyncio.ensure_future(sandbox.track(f"pause{number}").pause())
            await asyncio.sleep(number / 500)
            pausing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pausing
            assert (await sandbox.run_shell("echo on")).stdout == "on\n"
        await sandbox.stop()


async def test_what_ran_in_a_paused_sandbox_that_is_stopped_unwoken_does_not_run_for_ever(node: FaultNode) -> None:
    async with attached(node, "unwoken") as (_, rollout, sandbox), asyncio.timeout(30):
        running = asyncio.ensure_future(sandbox.track("beside").run_shell("sleep 1000"))
        await asyncio.sleep(0.1)
        await sandbox.pause()
        await restart(node)
        await sandbox.stop()
        with pytest.raises(Exception, match="cannot"):
            await running
        assert [step for step in await rollout.steps() if step.state == "running"] == []


@pytest.mark.parametrize("way", ["client", "server"])
async def test_a_write_whose_input_was_lost_is_done_when_it_is_said_again(node: FaultNode, way: str) -> None:
    async with attached(node, f"write-{way}") as (client, _, sandbox), asyncio.timeout(30):
        for delay in (0.0, 0.001, 0.002, 0.004):
            writing = asyncio.ensure_future(sandbox.files.write("/file", LARGE))
            await asyncio.sleep(delay)
            if way == "client":
                lose(client)
            else:
                await restart(node)
            assert await writing == len(LARGE)
            assert await sandbox.files.read("/file") == LARGE
        await sandbox.stop()


@pytest.mark.parametrize("way", ["client", "server"])
async def test_a_command_whose_input_was_lost_gets_it_when_it_is_said_again(node: FaultNode, way: str) -> None:
    """Or, where a server died while it handed over more than a window of it, nobody says how far it came."""
    unknown = 0
    async with attached(node, f"stdin-{way}") as (client, _, sandbox), asyncio.timeout(30):
        for delay in (0.0, 0.001, 0.002, 0.004):
            running = asyncio.ensure_future(sandbox.run_shell("echo on >> /count; wc -c", stdin=LARGE))
            await asyncio.sleep(delay)
            if way == "client":
                lose(client)
            else:
                await restart(node)
            try:
                result = await running
            except OutcomeUnknownError:
                assert way == "server"
                unknown += 1
                continue
            assert (result.ended, result.stdout.strip()) == ("exited", str(len(LARGE)))
        ran = (await sandbox.files.read("/count")).count(b"on\n")
        assert 4 - unknown <= ran <= 4
        await sandbox.stop()


@pytest.mark.parametrize("way", ["client", "server"])
async def test_a_read_that_was_lost_gives_all_of_it_when_it_is_said_again(node: FaultNode, way: str) -> None:
    async with attached(node, f"read-{way}") as (client, _, sandbox), asyncio.timeout(30):
        await sandbox.files.write("/file", LARGE)
        for delay in (0.0, 0.001, 0.002, 0.004, 0.008):
            reading = asyncio.ensure_future(sandbox.files.read("/file"))
            await asyncio.sleep(delay)
            if way == "client":
                lose(client)
            else:
                await restart(node)
            assert await reading == LARGE
        await sandbox.stop()


async def test_a_stream_without_its_reader_ends_with_the_server(node: FaultNode) -> None:
    async with attached(node, "stream") as (_, _, sandbox), asyncio.timeout(30):
        process = await sandbox.exec_stream(["/bin/sh", "-c", "echo on; sleep 1000"])
        assert await anext(aiter(process.stdout)) == b"on\n"
        await restart(node)
        with contextlib.suppress(Exception):
            await process.wait()

        async def is_gone() -> bool:
            return "sleep\0001000" not in (await sandbox.run_shell("cat /proc/[0-9]*/cmdline; true")).stdout

        await until(is_gone)
        await sandbox.stop()
