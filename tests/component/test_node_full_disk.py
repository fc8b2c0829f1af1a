"""A node whose journal cannot be written: what it says then, and that it goes on when there is room again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dsec.testing.fake_node import FakeNode, fake_node
from libdsec.protocol.errors import CapacityError, OutcomeUnknownError


@contextmanager
def full_disk(node: FakeNode) -> Iterator[None]:
    def refuse(_units: Any) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.edge.journal, "_apply", refuse)
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


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to that")
