"""Fake servers for coroutines (`with_fake`) and for code elsewhere (`fake_node`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from libdsec import DSecClient
from libdsec.testing import FakeServer, serving

Use = Callable[[FakeServer, DSecClient], Awaitable[None]]


class Clock:
    """Time that passes only where somebody sleeps, and at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def with_fake(request: pytest.FixtureRequest) -> Callable[[Use], None]:
    """Runs a coroutine with a fake server in memory and a client of it, on each event loop that people use."""

    def run(use: Use) -> None:
        async def main() -> None:
            async with asyncio.timeout(30), FakeServer() as server, DSecClient(endpoint=server) as client:
                await use(server, client)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run


@pytest.fixture
def fake_node(tmp_path: Path) -> Iterator[FakeServer]:
    """A fake server in a thread of its own, at `url`."""
    with serving(f"{tmp_path}/api.sock") as server:
        server.url = f"unix://{tmp_path}/api.sock"  # type: ignore[attr-defined]
        yield server
