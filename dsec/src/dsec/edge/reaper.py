"""The reaper: which sandboxes are due to be stopped, by idle TTL or total deadline. Pure, on one heap of times.

An idle sandbox is one in which no call of a client runs; its time counts from the end of the last one. Use does not
touch the heap: an entry that comes up too early is put back for the time it should have had. A paused sandbox is never
due.
"""

from __future__ import annotations

import heapq
import itertools

from .sandbox import Sandbox

IDLE, DEADLINE = "idle_ttl", "deadline"
_SLACK = 64
_PAUSED_STEP_S = 1.0
"""A paused sandbox is not looked at again before that."""


class Reaper:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sandbox]] = []
        self._order = itertools.count()
        self._live = 0

    def watch(self, sandbox: Sandbox) -> None:
        """From now on. A sandbox without TTL and deadline is never due."""
        when = _next(sandbox)
        if when is None:
            return
        self._live += 1
        if len(self._heap) > 2 * self._live + _SLACK:
            # most of the heap are sandboxes that ended before their time: let go of them
            self._heap = [entry for entry in self._heap if not entry[2].final]
            self._live = len(self._heap) + 1
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (when, next(self._order), sandbox))

    def ended(self, sandbox: Sandbox) -> None:
        """It is final; its entry goes when it comes up, or when there are too many of the kind."""
        if _next(sandbox) is not None:
            self._live = max(0, self._live - 1)

    def due(self, now: float) -> list[tuple[Sandbox, str]]:
        """Those to be stopped now, each with its cause, each named once."""
        found: list[tuple[Sandbox, str]] = []
        while self._heap and self._heap[0][0] <= now:
            _, _, sandbox = heapq.heappop(self._heap)
            if sandbox.final:
                continue
            if sandbox.paused_at is not None:
                # its time stands still: when it goes on, as much is left as at the pause
                left = (_next(sandbox) or sandbox.paused_mono) - sandbox.paused_mono
                heapq.heappush(self._heap, (now + max(left, _PAUSED_STEP_S), next(self._order), sandbox))
                continue
            cause = _cause(sandbox, now)
            if cause is not None:
                found.append((sandbox, cause))
                continue
            when = _next(sandbox)
            if when is not None:
                if sandbox.open and sandbox.spec.ttl_idle_s is not None:
                    # in use: its idle time has not begun, so it cannot be over before this
                    when = min(now + sandbox.spec.ttl_idle_s, sandbox.deadline or float("inf"))
                heapq.heappush(self._heap, (when, next(self._order), sandbox))
        return found

    def next_due(self) -> float | None:
        """When to ask again."""
        return self._heap[0][0] if self._heap else None


def _next(sandbox: Sandbox) -> float | None:
    times = [] if sandbox.deadline is None else [sandbox.deadline]
    if sandbox.spec.ttl_idle_s is not None:
        times.append(sandbox.used + sandbox.spec.ttl_idle_s)
    return min(times, default=None)


def _cause(sandbox: Sandbox, now: float) -> str | None:
    if sandbox.deadline is not None and sandbox.deadline <= now:
        return DEADLINE
    idle = sandbox.spec.ttl_idle_s
    if idle is not None and not sandbox.open and sandbox.used + idle <= now:
        return IDLE
    return None
