"""The numbers of one track: each goes to one call, and none is left out for long."""

from __future__ import annotations

import heapq


class Numbers:
    """The node takes numbers without a gap. So those of calls that never came to it are free again, and go first."""

    __slots__ = ("_free", "_last", "_under_way")

    def __init__(self) -> None:
        self._free: list[int] = []
        self._last = 0
        self._under_way: set[int] = set()

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

    def begin(self, n: int) -> None:
        """The call of `n` is on its way to the node."""
        self._under_way.add(n)

    def end(self, n: int) -> None:
        self._under_way.discard(n)

    def waits(self, n: int) -> bool:
        """Whether a call before `n` is on its way: after a loss they need not come in order."""
        return any(earlier < n for earlier in self._under_way)

    def place(self, n: int, known: int) -> int:
        """The number that the call of `n` has instead: the node knows of none after `known`, and none is on its way."""
        self.end(n)
        self.give_back(n)
        placed = known + 1
        self._free = sorted(free for free in self._free if free > placed)
        self._last = max(self._last, placed)
        self.begin(placed)
        return placed
