"""A command log on a real file, and a program that says steps to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from steps_said import Logbook, Open

from dsec.commandlog import SCHEMA, Bounds, CommandLog
from dsec.journal import Journal
from dsec.testing.fake_clock import FakeClock


@pytest.fixture
def open_log(tmp_path: Path) -> Open:
    """`async with open_log(bounds) as logbook`, again and again on the same files."""
    clock = FakeClock()

    @asynccontextmanager
    async def opened(
        bounds: Bounds | None = None, directory: Path | None = None, durable: bool = False
    ) -> AsyncIterator[Logbook]:
        home = directory or tmp_path
        journal = Journal(str(home / "edge.db"), asyncio.get_running_loop(), (SCHEMA,), durable=durable)
        try:
            yield Logbook(CommandLog(journal, str(home / "logs"), clock, bounds=bounds), clock)
        finally:
            await journal.close()

    return opened
