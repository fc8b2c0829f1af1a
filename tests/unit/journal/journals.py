"""A journal with one table, for tests."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dsec.journal import Journal, Schema

SCHEMA = Schema("things", (("CREATE TABLE things (n INTEGER PRIMARY KEY, data BLOB)",),))
INSERT = "INSERT INTO things VALUES (?, ?)"


@asynccontextmanager
async def opened(path: Path, *, durable: bool = False) -> AsyncIterator[Journal]:
    journal = Journal(str(path), asyncio.get_running_loop(), (SCHEMA,), durable=durable)
    try:
        yield journal
    finally:
        await journal.close()


async def committed(journal: Journal, sql: str, parameters: tuple[object, ...] = ()) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    journal.submit(sql, parameters, lambda: done.set_result(None), done.set_exception)
    await done


def numbers(path: Path) -> list[int]:
    database = sqlite3.connect(path)
    try:
        return [n for (n,) in database.execute("SELECT n FROM things ORDER BY n")]
    finally:
        database.close()


def files_in(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())
