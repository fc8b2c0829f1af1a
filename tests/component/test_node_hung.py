"""A PID 1 that no longer answers hangs nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dsec.testing.fake_clock import FakeClock
from dsec.testing.fake_driver import Machine
from dsec.testing.fake_node import fake_node
from dsec.testing.wire_client import WireClient
from libdsec.protocol.errors import OutcomeUnknownError


async def create(client: WireClient, **spec: object) -> str:
    info = await client.call("sandbox.create", spec={"image": "tiny:1", **spec})
    return str(info["id"])


async def test_a_hung_pid_1_does_not_hang_its_callers(run_dir: str) -> None:
    clock = FakeClock()
    async with fake_node(run_dir, clock) as node, node.client() as client:
        sandbox = await create(client)
        # the fake's sleep ends at a real 100 s, its clock says that this is long over
        call = client.start("exec", sandbox=sandbox, argv=["sleep", "1000"], timeout_s=100)
        await client.run(sandbox, "true")
        clock.advance(105)
        node.edge.sweep()
        assert len(node.edge.registry.get(sandbox).open) == 1
        clock.advance(10)
        node.edge.sweep()
        with pytest.raises(OutcomeUnknownError, match="PID 1 has not answered"):
            await call.answer()
        assert node.edge.registry.get(sandbox).open == set()
        await client.run(sandbox, "true")


async def test_an_edge_that_stood_still_blames_nobody_for_it(run_dir: str) -> None:
    clock = FakeClock()
    async with fake_node(run_dir, clock) as node, node.client() as client:
        called, idle = await create(client), await create(client, ttl_idle_s=60)
        await client.call("lease.take", kind="rollout", name="r", lease_s=10, stop_after_s=0)
        orphan = await create(client, rollout="r")
        client.start("exec", sandbox=called, argv=["sleep", "1000"], timeout_s=100)
        await client.run(called, "true")
        clock.advance(500)
        node.edge._looked = asyncio.get_running_loop().time() - 501
        node.edge.reap()
        node.edge.sweep()
        node.edge.end_orphans()
        assert len(node.edge.registry.get(called).open) == 1
        assert {str(node.edge.registry.get(sandbox).state) for sandbox in (called, idle, orphan)} == {"running"}
        clock.advance(59)
        node.edge.reap()
        assert str(node.edge.registry.get(idle).state) == "running"
        clock.advance(2)
        node.edge.reap()
        assert str(node.edge.registry.get(idle).state) == "stopping"


async def test_a_pid_1_that_hangs_hangs_no_caller_of_a_later_edge_either(run_dir: str) -> None:
    clock = FakeClock()
    machine: Machine = {}
    asked = {"argv": ["sleep", "1000"], "timeout_s": 100}
    async with fake_node(run_dir, clock, machine) as first, first.client() as client:
        sandbox = await create(client)
        client.step("main", 1, "exec", sandbox=sandbox, **asked)
        await client.run(sandbox, "true")
        first.leave = True
        first.driver.crash()
    async with fake_node(run_dir, clock, machine) as second, second.client() as client:
        call = client.step("main", 1, "exec", sandbox=sandbox, **asked)
        await client.run(sandbox, "true")
        clock.advance(115)
        second.edge.sweep()
        with pytest.raises(OutcomeUnknownError):
            await call.answer()
        # it is acknowledged when it has answered, not before
        (running,) = machine[sandbox].calls
        assert (running.running, running.acknowledged) == (True, False)
        running.cancel()
        await until(lambda: running.acknowledged)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to that")
