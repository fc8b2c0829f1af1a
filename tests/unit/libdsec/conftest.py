"""Runs a coroutine against a fake server: `with_fake(script, use)`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from libdsec import DSecClient
from libdsec.testing import FakeServer

Use = Callable[[FakeServer, DSecClient], Awaitable[None]]


@pytest.fixture
def with_fake() -> Callable[[Use], None]:
    def run(use: Use) -> None:
        async def main() -> None:
            async with asyncio.timeout(30), FakeServer() as server, DSecClient(endpoint=server) as client:
                await use(server, client)

        asyncio.run(main())

    return run
