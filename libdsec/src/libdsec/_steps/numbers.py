"""The numbers of one track, which the node takes without a gap.

The rule: a call begins with the lowest number that no call has. What is had is given back by a call that surely was not
recorded; and where the node says that it knows of no number after `k`, all after `k` are free that no call under way
has: theirs never came there, and never will. A call that the node refused so waits for those under way between `k` and
itself, which are said again before it, or takes `k + 1` where there are none.
"""

from __future__ import annotations

import asyncio
import heapq


class Numbers:
    """After a loss a call waits until those before it have been said again."""

    __slots__ = ("_free", "_last", "_turns", "_under_way", "_unsent")

    def __init__(self) -> None:
        self._free: list[int] = []
        """A heap of those up to `_last` that no call has."""
        self._last = 0
        self._under_way: set[int] = set()
        self._unsent: set[int] = set()
        """Of those under way: not sent yet, or lost."""
        self._turns: dict[int, asyncio.Future[None]] = {}

    def next(self) -> int:
        """The number of the next call. Nothing changes before `use`."""
        return self._free[0] if self._free else self._last + 1

    def use(self, n: int) -> None:
        """`n` was given by `next`."""
        if self._free:
            heapq.heappop(self._free)
        else:
            self._last = n

    def give_back(self, n: int) -> None:
        """The call of `n` surely was not recorded."""
        heapq.heappush(self._free, n)

    def known(self, k: int) -> None:
        """The node knows of no number after `k`."""
        self._free = [n for n in range(k + 1, self._last + 1) if n not in self._under_way]

    def waits(self, n: int, k: int) -> bool:
        """Whether a call after `k` and before `n` is under way."""
        return any(k < earlier < n for earlier in self._under_way)

    def place(self, n: int, k: int) -> int:
        """The number that the call of `n` has instead, where the node knows of none after `k` and it waits for none."""
        self.end(n)
        self.known(k)
        placed = heapq.heappop(self._free)
        self.begin(placed)
        return placed

    def begin(self, n: int) -> None:
        """The call of `n` is under way."""
        self._under_way.add(n)
        self._unsent.add(n)

    def end(self, n: int) -> None:
        """It is not any more, however it ended. Again is fine."""
        self._under_way.discard(n)
        self.sent(n)

    def blocked(self, n: int) -> bool:
        return len(self._unsent) > 1 and min(self._unsent) < n

    async def turn(self, n: int) -> None:
        turn = self._turns[n] = asyncio.get_running_loop().create_future()
        try:
            await turn
        finally:
            del self._turns[n]

    def sent(self, n: int) -> None:
        self._unsent.discard(n)
        if self._turns and self._unsent:
            turn = self._turns.get(min(self._unsent))
            if turn is not None and not turn.done():
                turn.set_result(None)

    def lost(self, n: int) -> None:
        self._unsent.add(n)
