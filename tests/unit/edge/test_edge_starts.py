"""No two starts of an edge have the same number, whatever became of the journal between them."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from dsec.edge.starts import SCHEMA, count_start
from dsec.journal import Journal


async def test_starts_are_numbered_upwards_by_the_clock_and_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(str(tmp_path / "edge.db"), asyncio.get_running_loop(), (SCHEMA,))
    try:
        assert [count_start(journal, now) for now in (1000.5, 1000.9, 900.0, 2000.0)] == [1000, 1001, 1002, 2000]

        def full(units: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(journal, "_apply", full)
        assert [count_start(journal, now) for now in (2007.0, 2008.0)] == [2007, 2008]
    finally:
        monkeypatch.undo()
        await journal.close()
