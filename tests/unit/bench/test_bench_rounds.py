"""Interleaving, the stop-watch's words, coming to rest."""

from __future__ import annotations

import asyncio

import pytest

from dsec.bench.idle_memory import resting
from dsec.bench.native import parse_turns
from dsec.bench.rounds import Contestant, interleave
from libdsec.protocol.errors import InternalError


def test_contestants_take_turns_and_the_first_turn_is_thrown_away() -> None:
    calls: list[tuple[str, int]] = []

    def contestant(name: str, share: float) -> Contestant:
        async def turn(count: int) -> list[float]:
            calls.append((name, count))
            return [float(len(calls))] * count

        return Contestant(turn, share)

    async def no_pause(seconds: float) -> None:
        pass

    seen: list[tuple[int, int, str]] = []
    measured = asyncio.run(
        interleave(
            {"fast": contestant("fast", 1.0), "slow": contestant("slow", 0.1), "slowest": contestant("slowest", 0.01)},
            samples=21,
            rounds=2,
            progress=lambda done, total, what: seen.append((done, total, what)),
            pause=no_pause,
        )
    )
    first = [("fast", 1), ("slow", 1), ("slowest", 1)]
    assert calls == [*first, ("fast", 10), ("slow", 1), ("fast", 11), ("slow", 1), ("slowest", 1)]
    assert measured == {"fast": [4.0] * 10 + [6.0] * 11, "slow": [5.0, 7.0], "slowest": [8.0]}
    assert seen[0] == (0, 9, "fast")
    assert seen[-1] == (9, 9, "")


def test_turns_are_read_in_milliseconds() -> None:
    turns = parse_turns("1000000 2500000\n3000000 4000000\ndone 2 5000000000\n")
    assert (turns.first, turns.total, turns.elapsed_s) == ([1.0, 3.0], [2.5, 4.0], 5.0)
    assert parse_turns("1000000 2000000\n").elapsed_s == 0.002


@pytest.mark.parametrize("line", ["", "x", "1", "1 y", "done 2"])
def test_what_the_stopwatch_never_prints_is_refused(line: str) -> None:
    with pytest.raises(InternalError, match="cannot read the stop-watch"):
        parse_turns(f"1 2\n{line}\n1 2\n")


def test_memory_is_read_once_it_has_come_to_rest() -> None:
    readings = iter([100_000, 90_000, 85_000, 84_900, 84_700, 1])
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    assert asyncio.run(resting(lambda: next(readings), pause)) == 84_900
    assert len(pauses) == 4


def test_memory_that_never_rests_is_read_all_the_same() -> None:
    readings = iter(range(0, 10_000_000, 10_000))

    async def pause(seconds: float) -> None:
        pass

    assert asyncio.run(resting(lambda: next(readings), pause)) == 140_000
