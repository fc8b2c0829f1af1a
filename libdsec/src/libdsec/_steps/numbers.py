"""The numbers of one track: each goes to one call, none is left out for long, and they go out in their order."""

from __future__ import annotations

import asyncio
import heapq


class Numbers:
    """The node takes numbers without a gap. So those of calls that never came to it are free again, and go first; and
    after a loss a call waits until those before it have been said again."""

    __slots__ = ("_free", "_last", "_turns", "_under_way", "_unsent")

    def __init__(self) -> None:
        self._free: list[int] = []
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
        if n == self._last:
            self._last -= 1
        else:
            heapq.heappush(self._free, n)

    def place(self, n: int, known: int) -> int:
        """The number that the call of `n` has instead: the node knows of none after `known`, and none is under way."""
        self.end(n)
        self.give_back(n)
        placed = known + 1
        self._free = sorted(free for free in self._free if free > placed)
        self._last = max(self._last, placed)
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

    def follows(self, n: int) -> bool:
        """Whether a call before `n` is under way."""
        return any(earlier < n for earlier in self._under_way)

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
