"""Who may ask the store next: so many requests at once a node and a layer, misses before what is only fetched ahead,
and layers in turn, so that a hot one does not delay another."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_Waiter = asyncio.Future[None]


class Turns:
    """Used on one event loop."""

    def __init__(self, *, at_once: int, a_layer: int, ahead: int) -> None:
        """`ahead`: of what no reader waits for, at most so many of the node's."""
        self._at_once, self._a_layer, self._most_ahead = at_once, a_layer, ahead
        self._running: Counter[str] = Counter()
        self._total = self._running_ahead = 0
        self._misses: dict[str, deque[_Waiter]] = {}
        """Layers in the order of their turns."""
        self._ahead: deque[tuple[str, _Waiter]] = deque()

    @asynccontextmanager
    async def turn(self, layer: str, *, ahead: bool) -> AsyncIterator[None]:
        """Wait for a turn, and have it for as long as the block runs."""
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        if ahead:
            self._ahead.append((layer, waiter))
        else:
            self._misses.setdefault(layer, deque()).append(waiter)
        self._next()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._give_back(layer, ahead)
            raise
        try:
            yield
        finally:
            self._give_back(layer, ahead)

    def _give_back(self, layer: str, ahead: bool) -> None:
        self._total -= 1
        self._running[layer] -= 1
        if not self._running[layer]:
            del self._running[layer]
        if ahead:
            self._running_ahead -= 1
        self._next()

    def _next(self) -> None:
        while self._total < self._at_once and (self._next_miss() or self._next_ahead()):
            pass

    def _next_miss(self) -> bool:
        for layer in list(self._misses):
            queue = self._misses[layer]
            while queue and queue[0].done():
                queue.popleft()
            if not queue:
                del self._misses[layer]
            elif self._running[layer] < self._a_layer:
                waiter = queue.popleft()
                # to the end of the order
                del self._misses[layer]
                if queue:
                    self._misses[layer] = queue
                self._begin(layer, waiter)
                return True
        return False

    def _next_ahead(self) -> bool:
        if self._running_ahead >= self._most_ahead:
            return False
        while self._ahead:
            layer, waiter = self._ahead.popleft()
            if not waiter.done():
                self._running_ahead += 1
                self._begin(layer, waiter)
                return True
        return False

    def _begin(self, layer: str, waiter: _Waiter) -> None:
        self._total += 1
        self._running[layer] += 1
        waiter.set_result(None)
