"""Kinds of faults that other platforms were reported for, each provoked the smallest way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import pytest
from fault_node import FaultNode, until

from libdsec import DSecClient, DSecContainerRunArgs
from libdsec.errors import SandboxFailedError, SandboxStateError, SessionNotFoundError
from libdsec.sandbox import Sandbox

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether")
ARGS = DSecContainerRunArgs(container_image="tiny:1", memory_limit_mb=256)


@contextlib.asynccontextmanager
async def connected(node: FaultNode) -> AsyncIterator[DSecClient]:
    assert await node.serving()
    async with DSecClient(f"unix://{node.socket}", reconnect_timeout=30) as client, asyncio.timeout(60):
        yield client


async def restart(node: FaultNode) -> None:
    node.crash()
    node.start()
    await node.serving()


async def settled(sandbox: Sandbox, state: str) -> str | None:
    """Wait for a state; its cause."""

    async def there() -> bool:
        return (await sandbox.info()).state == state

    await until(there)
    return (await sandbox.info()).cause


async def test_what_belonged_to_a_sandbox_reaches_none_that_has_its_place_now(node: FaultNode) -> None:
    async with connected(node) as client:
        first = await client.run_container(ARGS)
        session = await first.session().open()
        late = asyncio.ensure_future(first.track("late").run_shell("sleep 1000; echo late > /mark"))
        await asyncio.sleep(0.05)
        await first.stop()
        second = await client.run_container(ARGS)
        for call in (first.run_shell("echo x > /mark"), first.files.write("/mark", "x"), session.run("echo x > /mark")):
            with pytest.raises(SandboxStateError):
                await call
        with pytest.raises(SandboxFailedError):
            await late
        stale = second.session()
        stale._info = session._info
        with pytest.raises(SessionNotFoundError):
            await stale.run("echo x > /mark")
        assert not await second.files.exists("/mark")
        await second.stop()


async def test_each_of_many_pauses_keeps_what_was_written_before(node: FaultNode) -> None:
    async with connected(node) as client, await client.run_container(ARGS) as sandbox:
        for last in range(5):
            await sandbox.files.write(f"/file{last}", f"content {last}" * 10_000)
            await sandbox.pause()
            if last % 2:
                await restart(node)
            await sandbox.resume()
            for number in range(last + 1):
                assert await sandbox.files.read_text(f"/file{number}") == f"content {number}" * 10_000


async def test_pauses_and_resumes_without_a_gap(node: FaultNode) -> None:
    async with connected(node) as client:
        sandboxes = [await client.run_container(ARGS) for _ in range(5)]

        async def change(sandbox: Sandbox) -> None:
            pauses, resumes = sandbox.track("pauses"), sandbox.track("resumes")
            for _ in range(40):
                paused, resumed = await asyncio.gather(pauses.pause(), resumes.resume())
                assert {paused.state, resumed.state} <= {"running", "pausing", "paused", "resuming"}

        await asyncio.gather(*map(change, sandboxes))
        for sandbox in sandboxes:
            assert (await sandbox.run_shell("echo on")).stdout == "on\n"
        assert {info.state for info in await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))} == {"stopped"}


@pytest.mark.parametrize("victims", ["fork server", "edge", "both"])
async def test_a_death_in_the_middle_of_a_resume_leaves_nothing_undead(node: FaultNode, victims: str) -> None:
    async with connected(node) as client:
        for delay in (0.0, 0.002, 0.005):
            sandbox = await client.run_container(ARGS)
            await sandbox.pause()
            resuming = asyncio.ensure_future(sandbox.resume())
            await asyncio.sleep(delay)
            if victims != "edge":
                node.kill_fork_server()
            if victims != "fork server":
                await restart(node)
            try:
                assert (await resuming).state == "running"
                assert (await sandbox.resume()).state == "running"
                assert (await sandbox.run_shell("echo on")).stdout == "on\n"
            except SandboxFailedError:
                assert victims == "both"
            assert (await sandbox.stop()).state in ("stopped", "failed")

        async def nothing_left() -> bool:
            return not node.inits() and not node.uppers()

        await until(nothing_left)


async def test_timeouts_go_on_while_no_server_runs(node: FaultNode) -> None:
    async with connected(node) as client, await client.run_container(ARGS) as sandbox:
        running = asyncio.ensure_future(sandbox.run_shell("echo begun; sleep 1000 & sleep 1000", timeout=0.5))
        await asyncio.sleep(0.1)
        node.crash()
        await asyncio.sleep(0.5)
        node.start()
        result = await running
        assert (result.ended, result.stdout) == ("timed_out", "begun\n")


async def test_a_sandbox_that_ended_while_no_server_ran_says_so(node: FaultNode) -> None:
    async with connected(node) as client, await client.run_container(ARGS) as other:
        before = set(node.inits())
        killed = await client.run_container(ARGS)
        (init,) = set(node.inits()) - before
        node.crash()
        os.kill(init, signal.SIGKILL)
        node.start()
        assert await settled(killed, "failed") == "lost"
        with pytest.raises(SandboxFailedError, match="ended"):
            await killed.run_shell("true")
        assert (await other.run_shell("echo on")).stdout == "on\n"


async def test_a_sandbox_that_is_killed_says_so_soon(node: FaultNode) -> None:
    async with connected(node) as client, await client.run_container(ARGS) as sandbox:
        for init in node.inits():
            os.kill(init, signal.SIGKILL)
        assert await settled(sandbox, "failed") == "init_killed"
