"""Progress of work in a thread: all that is worth telling, and no more; and the work's end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from dsec.edge import blocking
from dsec.edge.blocking import CanceledError, News, in_thread
from libdsec.protocol.environment import BuildProgress


class _Told:
    """What was told of some work."""

    def __init__(self) -> None:
        self.news: list[tuple[str, int]] = []
        self.threads: set[threading.Thread] = set()
        self.some = asyncio.Event()

    def __call__(self, news: BuildProgress) -> None:
        self.news.append((news.stage, news.bytes_done))
        self.threads.add(threading.current_thread())
        self.some.set()


async def test_the_latest_of_each_stage_is_told_in_order_and_what_came_last_at_the_end() -> None:
    told = _Told()
    with News(told) as news:
        # no turn of the loop lies between these
        for stage, done in (("fetch", 0), ("fetch", 1), ("write", 2), ("fetch", 3)):
            news.tell(BuildProgress(stage, done))
        await told.some.wait()
        assert told.news == [("write", 2), ("fetch", 3)]
        news.tell(BuildProgress("write", 4))
        news.tell(BuildProgress("write", 5))
    assert told.news[2:] == [("write", 5)]
    await asyncio.sleep(0)
    assert len(told.news) == 3


async def test_it_is_told_on_the_loop() -> None:
    told, loop = _Told(), asyncio.get_running_loop()

    def work(tell: blocking.Progress) -> int:
        tell(BuildProgress("fetch", 1))
        return asyncio.run_coroutine_threadsafe(told.some.wait(), loop).result(60)

    assert await in_thread(work, told)
    assert told.threads == {threading.current_thread()}


async def test_of_what_is_over_at_once_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "PROGRESS_S", 3600.0)
    told = _Told()
    await in_thread(lambda tell: tell(BuildProgress("fetch", 1)), told)
    assert told.news == []


async def test_whoever_tells_something_that_nobody_wants_any_more_is_ended() -> None:
    with News(lambda news: None) as news:
        news.check()
        news.canceled = True
        for call in (news.check, lambda: news.tell(BuildProgress("fetch", 1))):
            with pytest.raises(CanceledError):
                call()


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("end", [lambda: None, lambda: _raise(OSError("of the work's own"))])
async def test_a_cancel_waits_for_the_work_also_when_it_is_said_twice(end: Callable[[], None]) -> None:
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def work(_: blocking.Progress) -> None:
        begun.set()
        assert go_on.wait(60)
        over.set()
        end()

    task = asyncio.ensure_future(in_thread(work, lambda news: None))
    await asyncio.to_thread(begun.wait)
    for _ in range(2):
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert over.is_set()
