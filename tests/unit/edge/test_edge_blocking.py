"""Progress of work in a thread: all that is worth telling, and no more."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dsec.edge import blocking
from dsec.edge.blocking import CanceledError, News, in_thread
from libdsec.protocol.environment import BuildProgress


class _Told:
    """What was told of work that waits until something was."""

    def __init__(self) -> None:
        self.news: list[tuple[str, int]] = []
        self.threads: set[threading.Thread] = set()
        self.some = threading.Event()

    def __call__(self, news: BuildProgress) -> None:
        self.news.append((news.stage, news.bytes_done))
        self.threads.add(threading.current_thread())
        self.some.set()


async def test_the_latest_of_each_stage_is_told_and_what_came_last_at_the_end() -> None:
    told = _Told()

    def work(tell: blocking.Progress) -> int:
        for stage, done in (("fetch", 0), ("fetch", 1), ("write", 2), ("fetch", 3)):
            tell(BuildProgress(stage, done))
        assert told.some.wait(60)
        tell(BuildProgress("write", 4))
        tell(BuildProgress("write", 5))
        return 7

    assert await in_thread(work, told) == 7
    assert told.news[:2] == [("fetch", 3), ("write", 2)]
    assert told.news[-1] == ("write", 5)
    assert told.threads == {threading.current_thread()}


async def test_of_what_is_over_at_once_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "PROGRESS_S", 3600.0)
    told = _Told()
    await in_thread(lambda tell: tell(BuildProgress("fetch", 1)), told)
    await asyncio.sleep(0)
    assert told.news == []


async def test_nothing_is_told_when_the_work_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "PROGRESS_S", 0.0)
    told = _Told()
    with News(told) as news:
        pass
    news.tell(BuildProgress("fetch", 1))
    await asyncio.sleep(0.01)
    assert told.news == []


async def test_whoever_tells_something_that_nobody_wants_any_more_is_ended() -> None:
    with News(lambda news: None) as news:
        news.check()
        news.canceled = True
        for call in (news.check, lambda: news.tell(BuildProgress("fetch", 1))):
            with pytest.raises(CanceledError):
                call()
