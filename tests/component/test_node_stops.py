"""A stop is done soon, whatever else is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dsec.drivers.base import End
from dsec.testing.fake_node import fake_node
from libdsec.protocol.errors import SandboxFailedError
from libdsec.protocol.lifecycle import State

IMAGE = {"image": "tiny:1"}


@pytest.mark.parametrize("how", ["stopped", "died"])
async def test_a_slow_pause_gives_way_to_the_end(run_dir: str, how: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        name = (await client.call("sandbox.create", spec=IMAGE))["id"]
        instance = node.driver.instances[name]
        instance.slow_pause = asyncio.Event()
        pausing = client.start("sandbox.pause", sandbox=name)
        await until(lambda: node.edge.registry.get(name).state is State.PAUSING)
        if how == "stopped":
            assert (await client.call("sandbox.stop", sandbox=name))["state"] == "stopped"
        else:
            instance.die(End("init_killed", "killed", {}))
            await until(lambda: not node.driver.instances)
        with pytest.raises(SandboxFailedError):
            await pausing.answer()
        assert node.edge.slots.taken == 0


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to that")
