"""A node whose journal cannot be written: what it says then, and that it goes on when there is room again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from dsec.testing.fake_driver import Machine
from dsec.testing.fake_node import FakeNode, fake_node
from libdsec.protocol.errors import CapacityError, DSecError, OutcomeUnknownError
from libdsec.protocol.lifecycle import State


@contextmanager
def full_disk(node: FakeNode) -> Iterator[None]:
    def refuse(_units: Any) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.edge.journal, "_apply", refuse)
        patch.setattr(node.edge.journal, "_waiting", None)
        yield


async def test_what_cannot_be_written_down_is_neither_paused_nor_resumed(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = (await client.call("sandbox.create", spec={"image": "tiny:1", "job": "j"}))["id"]
        for verb, state in (("pause", "running"), ("resume", "paused")):
            with full_disk(node):
                answer = await client.call(f"job.{verb}", job="j")
                assert (answer["done"], list(answer["failed"])) == (0, [sandbox])
                assert (await client.call("sandbox.inspect", sandbox=sandbox))["state"] == state
            assert (await client.run(sandbox, "echo", "on"))[1] == b"on\n"
            await client.call("sandbox.pause", sandbox=sandbox)
        assert node.driver.instances[sandbox].paused


@pytest.mark.parametrize("joined", [False, True])
async def test_a_sandbox_that_cannot_be_written_down_is_nobodys(run_dir: str, joined: bool) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        asked = {"spec": {"image": "tiny:1"}, "idempotency_key": "k"}
        node.driver.gate = asyncio.Event()
        calls = [client.start("sandbox.create", **asked) for _ in range(1 + joined)]
        await until(lambda: len(node.edge.registry) > 0)
        await client.call("sandbox.list")  # behind all that was said before
        with full_disk(node):
            node.driver.gate.set()
            for call in calls:
                with pytest.raises(CapacityError):
                    await call.answer()
            await until(lambda: not node.driver.instances)
        made = await client.call("sandbox.create", **asked)
        assert (made["state"], list(node.driver.instances)) == ("running", [made["id"]])


async def test_a_create_whose_outcome_cannot_be_recorded_is_unknown_and_leaves_nothing(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        node.driver.gate = asyncio.Event()
        call = client.step("main", 1, "sandbox.create", spec={"image": "tiny:1", "rollout": "r"})
        await until(lambda: len(node.edge.registry) > 0)
        with full_disk(node):
            node.driver.gate.set()
            with pytest.raises(OutcomeUnknownError):
                await call.answer()
            await until(lambda: not node.driver.instances)


async def test_a_stop_that_cannot_be_recorded_is_told_and_known_later(
    run_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = (await client.call("sandbox.create", spec={"image": "tiny:1"}))["id"]
        with ExitStack() as later:
            instance = node.driver.instances[sandbox]
            destroy = instance.destroy

            async def destroyed(error: DSecError) -> None:
                later.enter_context(full_disk(node))
                calls.append(client.step("main", 1, "sandbox.stop", sandbox=sandbox))
                await until(lambda: any(step.heard for step in node.edge.log.running_steps(sandbox)))
                await destroy(error)

            monkeypatch.setattr(instance, "destroy", destroyed)
            calls = [client.step("main", 1, "sandbox.stop", sandbox=sandbox)]
            for _ in range(2):
                for call in calls:
                    assert (await call.answer())["state"] == "stopped"
                calls = [client.step("main", 1, "sandbox.stop", sandbox=sandbox)]
            assert (await calls[0].answer())["state"] == "stopped"
            node.edge.sweep()
            node.edge.journal.flush_now()
        node.edge.sweep()
        node.leave = True
        node.driver.crash()
    async with fake_node(run_dir) as node, node.client() as client:
        info = await client.call("sandbox.inspect", sandbox=sandbox)
        assert (info["state"], info["cause"]) == ("stopped", "client")
        assert (await client.step("main", 1, "sandbox.stop", sandbox=sandbox).answer())["state"] == "stopped"


async def test_an_end_that_cannot_be_written_is_written_later(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = (await client.call("sandbox.create", spec={"image": "tiny:1", "job": "j"}))["id"]
        with full_disk(node):
            await client.call("job.stop", job="j")
            node.edge.sweep()
            node.edge.journal.flush_now()
        node.edge.sweep()
        node.leave = True
        node.driver.crash()
    async with fake_node(run_dir) as node, node.client() as client:
        info = await client.call("sandbox.inspect", sandbox=sandbox)
        assert (info["state"], info["cause"]) == ("stopped", "job")


@pytest.mark.parametrize("room", [False, True])
async def test_a_pause_that_is_done_and_not_written_is_told_and_written_later(
    run_dir: str, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    machine: Machine = {}
    async with fake_node(run_dir, machine=machine) as node, node.client() as client:
        sandbox = (await client.call("sandbox.create", spec={"image": "tiny:1", "job": "j"}))["id"]
        instance = node.driver.instances[sandbox]
        with ExitStack() as later:
            pause = instance.pause

            async def paused() -> None:
                await pause()
                later.enter_context(full_disk(node))

            monkeypatch.setattr(instance, "pause", paused)
            assert await client.call("job.pause", job="j") == {"done": 1, "failed": {}, "failures": 0}
            assert (await client.call("sandbox.inspect", sandbox=sandbox))["state"] == "paused"
        if room:
            node.edge.sweep()
        node.leave = True
        node.driver.crash()
    async with fake_node(run_dir, machine=machine) as node, node.client() as client:
        await until(lambda: node.edge.registry.get(sandbox).state in (State.RUNNING, State.PAUSED))
        assert (await client.call("sandbox.inspect", sandbox=sandbox))["state"] == ("paused" if room else "running")


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to that")
