"""Containers whose fork server is lost, while their edge lives and before the next one starts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from driver_calls import GONE, TIMEOUT_S, ignore, start
from driver_subjects import ContainerSubject, container_subject

from dsec.bus import Answerer, Caller
from dsec.drivers.base import End
from libdsec.protocol.errors import SandboxFailedError

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether")


def signal_fork_server(directory: Path, number: int) -> None:
    os.kill(json.loads((directory / "run" / "fork-server.sock.pid").read_bytes())["pid"], number)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - what it looks at has no event
            await asyncio.sleep(0.005)


async def kill_fork_server(s: ContainerSubject, directory: Path) -> None:
    """And wait until another has taken its place, without being asked."""
    server = s.node.driver._server
    before = server._link
    signal_fork_server(directory, signal.SIGKILL)
    await until(lambda: server._link is not before and server._link is not None and server._link.open)


def nobody(tag: str, running: bool, answerer: Answerer) -> Caller | None:
    return None


async def test_what_a_lost_fork_server_made_outlives_the_edge_too(tmp_path: Path) -> None:
    async with container_subject(tmp_path) as s:
        orders = [s.order(), s.order()]
        made = [await s.driver.create(order, ignore) for order in orders]
        await kill_fork_server(s, tmp_path)
        for instance in made:
            assert (await start(instance, "true").end())["exit_code"] == 0
        await s.succeed(False)
        ends: list[End] = []
        adopted = [
            await s.driver.adopt(order, instance.keep(), ends.append, nobody, paused=False)
            for order, instance in zip(orders, made, strict=True)
        ]
        await s.driver.sweep()
        assert s.taken()["instances"] == 2
        # of the layers that this edge has no mount of, the next server has none
        await kill_fork_server(s, tmp_path)
        fresh = await s.driver.create(s.order(), ignore)
        for instance in (*adopted, fresh):
            assert (await start(instance, "true").end())["exit_code"] == 0
        s.kill(orders[0].id)
        await until(lambda: ends != [])
        assert [end.cause for end in ends] == ["channel_lost"]
        await asyncio.gather(*(instance.destroy(GONE) for instance in (*adopted, fresh)))
        assert not any(s.taken().values())


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_fork_server_that_does_not_answer_a_successor_is_replaced(tmp_path: Path, number: int) -> None:
    async with container_subject(tmp_path) as s:
        order = s.order()
        instance = await s.driver.create(order, ignore)
        kept = instance.keep()
        signal_fork_server(tmp_path, number)
        if number == signal.SIGKILL:
            s.node.driver._server._closed = True  # the edge dies with it
        s.node.timeout_s = 1.0
        await s.succeed(False)
        with pytest.raises(SandboxFailedError):
            await s.driver.adopt(order, kept, ignore, nobody, paused=False)
        await s.driver.sweep()
        other = await s.driver.create(s.order(), ignore)
        assert (await start(other, "true").end())["exit_code"] == 0
        await other.destroy(GONE)
        assert not any(s.taken().values())
