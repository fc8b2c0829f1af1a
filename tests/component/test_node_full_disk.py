"""A node whose journal cannot be written: what it says then, and that it goes on when there is room again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dsec.testing.fake_node import FakeNode, fake_node


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
