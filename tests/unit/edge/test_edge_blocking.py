"""Progress of work in a thread: all that is worth telling, and no more."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from dsec.edge import blocking
from dsec.edge.blocking import PROGRESS_S, telling
from libdsec.protocol.environment import BuildProgress


async def test_the_first_of_each_stage_is_told_and_others_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(blocking, "time", SimpleNamespace(monotonic=lambda: now))
    told: list[tuple[str, int]] = []
    tell = telling(lambda news: told.append((news.stage, news.bytes_done)))
    for stage, done, after in (
        ("fetch", 0, 0.0),
        ("fetch", 1, 0.5),
        ("fetch", 2, 0.6),
        ("fetch", 3, 0.5),
        ("write", 4, 0.0),
        ("write", 5, 0.5),
        ("fetch", 6, 0.0),
    ):
        now += after * PROGRESS_S
        tell(BuildProgress(stage, done))
    await asyncio.sleep(0)
    assert told == [("fetch", 0), ("fetch", 2), ("write", 4), ("fetch", 6)]


async def test_it_is_told_on_the_loop() -> None:
    told: list[threading.Thread] = []
    tell = telling(lambda news: told.append(threading.current_thread()))
    await asyncio.to_thread(tell, BuildProgress("fetch", 1))
    await asyncio.sleep(0)
    assert told == [threading.current_thread()]
