"""Interleaving: everyone a little, in turn, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

SETTLE_S = 0.2


class Contestant(msgspec.Struct, frozen=True):
    """`turn(count)` measures `count` times and gives what it measured."""

    turn: Callable[[int], Awaitable[list[float]]]
    share: float = 1.0
    """Of the samples that everyone else takes: a contestant of half a second a turn gets a tenth."""


Progress = Callable[[int, int, str], None]
"""Done steps, all steps, what is being measured."""


def silent(done: int, total: int, what: str) -> None:
    """The progress of nobody."""


async def interleave(
    contestants: Mapping[str, Contestant],
    samples: int,
    rounds: int = 10,
    progress: Progress = silent,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> dict[str, list[float]]:
    """`samples` measurements of each, or its share of them but at least one, spread over `rounds` rounds.

    The first turn of each is thrown away: it pays for cold caches, which is not what is asked. Before each turn there
    is a pause: the kernel takes namespaces down long after their processes have ended, and the next one must not pay
    for that.
    """
    total, done = (rounds + 1) * len(contestants), 0
    measured: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, contestant in contestants.items():
            progress(done, total, name)
            count = 1 if number == 0 else _due(samples * contestant.share, number, rounds)
            if count:
                await pause(SETTLE_S)
                values = await contestant.turn(count)
                if number > 0:
                    measured[name].extend(values)
            done += 1
    progress(total, total, "")
    return measured


def _due(samples: float, number: int, rounds: int) -> int:
    """How many of them fall into this round (1 is the first), so that all rounds together have them all."""
    whole = max(1, round(samples))
    return whole * number // rounds - whole * (number - 1) // rounds
