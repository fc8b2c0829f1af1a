"""The parts of loading that need no kernel: turns, read-ahead, maps of what is there, traces, counts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dsec.store.loading import present
from dsec.store.loading.counts import Counts
from dsec.store.loading.flights import runs
from dsec.store.loading.pending import PendingEvents, Taken
from dsec.store.loading.present import PresentMap
from dsec.store.loading.readahead import MAX_STREAMS, ReadAhead
from dsec.store.loading.trace import MAX_CHUNKS, RECORD_S, Trace
from dsec.store.loading.turns import Turns


class Turn:
    """One that is taken, or waited for, until it is given back."""

    def __init__(self, turns: Turns, layer: str, *, ahead: bool = False) -> None:
        self.has = asyncio.Event()
        self.done = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run(turns, layer, ahead))

    async def _run(self, turns: Turns, layer: str, ahead: bool) -> None:
        async with turns.turn(layer, ahead=ahead):
            self.has.set()
            await self.done.wait()

    async def end(self) -> None:
        self.done.set()
        await self.task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def having(turns: list[Turn]) -> list[int]:
    await settle()
    return [number for number, turn in enumerate(turns) if turn.has.is_set()]


async def test_a_hot_layer_leaves_room_for_another() -> None:
    turns = Turns(at_once=4, a_layer=3, ahead=2)
    hot = [Turn(turns, "hot") for _ in range(6)]
    assert await having(hot) == [0, 1, 2]
    other = Turn(turns, "other")
    assert await having([other]) == [0]
    waiting = Turn(turns, "other")
    await hot[0].end()
    # both wait; the layer whose turn was longer ago is next
    assert await having([*hot, waiting]) == [0, 1, 2, 3]
    await hot[1].end()
    assert await having([waiting]) == [0]
    for turn in (*hot[2:], other, waiting):
        await turn.end()


async def test_what_nobody_waits_for_comes_last_and_is_bounded() -> None:
    turns = Turns(at_once=3, a_layer=3, ahead=2)
    ahead = [Turn(turns, "a", ahead=True) for _ in range(4)]
    assert await having(ahead) == [0, 1]
    misses = [Turn(turns, "b") for _ in range(2)]
    assert await having(misses) == [0]
    await ahead[0].end()
    assert await having([*ahead, *misses]) == [0, 1, 4, 5]
    for turn in (*misses, *ahead[1:]):
        await turn.end()


async def test_who_gives_up_costs_nobody_a_turn() -> None:
    turns = Turns(at_once=1, a_layer=1, ahead=1)
    first, second, third = (Turn(turns, "a") for _ in range(3))
    assert await having([first, second, third]) == [0]
    second.task.cancel()
    await settle()
    await first.end()
    assert await having([third]) == [0]
    third.task.cancel()
    fourth = Turn(turns, "a", ahead=True)
    assert await having([fourth]) == [0]
    await fourth.end()


def test_reading_in_order_fetches_further_and_further() -> None:
    ahead = ReadAhead(1, 8)
    fetched, end = [], 0
    for chunk in range(40):
        start, stop = ahead.after(chunk, chunk + 1)
        assert stop - start <= 8
        assert start >= end
        if start < stop:
            fetched.append(stop - start)
            end = stop
    assert fetched[0] == 1
    assert fetched[-1] == 8
    assert 40 <= end <= 40 + 16


def test_reading_here_and_there_fetches_little() -> None:
    ahead = ReadAhead(1, 8)
    for chunk in range(0, 100 * MAX_STREAMS, 100):
        assert ahead.after(chunk, chunk + 1) == (chunk + 1, chunk + 2)
    assert ReadAhead(0, 8).after(5, 6) == (6, 6)


def test_runs_are_neighbours_and_bounded() -> None:
    assert list(runs([], 4)) == []
    assert list(runs([1, 2, 3, 7, 9, 10, 11, 12, 13], 3)) == [(1, 3), (7, 1), (9, 3), (12, 2)]


@pytest.fixture
def map_path(tmp_path: Path) -> str:
    return str(tmp_path / "present.map")


def open_map(path: str, **other: int) -> PresentMap | None:
    return PresentMap.open(path, **{"chunks": 21, "chunk_size": 4096, "inode": 7, **other})


def test_what_was_marked_is_there_for_the_next_process(map_path: str) -> None:
    assert open_map(map_path) is None
    made = PresentMap.create(map_path, chunks=21, chunk_size=4096, inode=7)
    for chunk in (0, 8, 20, 20):
        made.mark(chunk)
    made.clear(8)
    assert made.count == 2
    made.close()
    found = open_map(map_path)
    assert found is not None
    assert (found.count, found.trusted) == (2, True)
    assert [chunk for chunk in range(21) if found.has(chunk)] == [0, 20]
    assert list(found.absent(18)) == [18, 19]
    found.close()


def test_a_map_of_another_boot_is_not_trusted(map_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PresentMap.create(map_path, chunks=21, chunk_size=4096, inode=7).close()
    monkeypatch.setattr(present, "boot_id", lambda: bytes(16))
    found = open_map(map_path)
    assert found is not None
    assert not found.trusted
    found.trust()
    found.close()
    found = open_map(map_path)
    assert found is not None
    assert found.trusted
    found.close()


def test_a_map_that_is_not_of_this_file_is_none(map_path: str) -> None:
    PresentMap.create(map_path, chunks=21, chunk_size=4096, inode=7).close()
    assert open_map(map_path, inode=8) is None
    assert open_map(map_path, chunks=22) is None
    assert open_map(map_path, chunks=30) is None
    assert open_map(map_path, chunk_size=8192) is None
    os.truncate(map_path, 65)
    assert open_map(map_path) is None
    os.truncate(map_path, 0)
    assert open_map(map_path) is None


def test_a_trace_is_what_the_first_start_read_in_order(tmp_path: Path) -> None:
    first = Trace(str(tmp_path), 100, 0.0)
    assert first.earlier == ()
    for start, end in ((5, 7), (2, 3), (6, 7), (90, 91)):
        first.note(start, end, 1.0)
    first.note(50, 51, RECORD_S + 1)
    first.save()
    second = Trace(str(tmp_path), 80, 0.0)
    assert second.earlier == (5, 6, 2)
    second.note(1, 2, 1.0)
    second.save()
    assert Trace(str(tmp_path), 100, 0.0).earlier == (5, 6, 2, 90)


def test_a_trace_is_bounded(tmp_path: Path) -> None:
    trace = Trace(str(tmp_path), 10**6, 0.0)
    for chunk in range(2 * MAX_CHUNKS):
        trace.note(chunk, chunk + 1, 1.0)
    trace.save()
    assert len(Trace(str(tmp_path), 10**6, 0.0).earlier) == MAX_CHUNKS


def test_counts_outlive_the_process(tmp_path: Path) -> None:
    counts = Counts(str(tmp_path))
    assert (counts.quantile(0.5), counts.quantile(0.99)) == (0.0, 0.0)
    counts.source = "pre-content"
    counts.fetched(2, 1000)
    for number in range(100):
        counts.waited(number / 1000)
    counts.save()
    again = Counts(str(tmp_path))
    assert (again.source, again.requests, again.fetched_bytes, again.reads_waited) == ("pre-content", 2, 1000, 100)
    assert (again.quantile(0.5), again.quantile(0.99)) == (50.0, 99.0)
    (tmp_path / "present.counts").write_bytes(b"{")
    assert Counts(str(tmp_path)).requests == 0


def test_events_that_were_taken_are_known_to_the_next_process(tmp_path: Path) -> None:
    path = str(tmp_path / "pending")
    pending = PendingEvents(path)
    digest = f"sha256:{'ab' * 32}"
    pending.record(40, digest, 4096, 8192)
    pending.record(3, digest, 0, 4096)
    pending.clear(3)
    pending.close()
    pending = PendingEvents(path)
    assert pending.read() == [Taken(40, digest, 4096, 8192)]
    pending.forget()
    assert pending.read() == []
    pending.close()
