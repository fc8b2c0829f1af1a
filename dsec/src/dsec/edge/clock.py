"""Time, passed in: tests bring their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, for what is shown."""

    def monotonic(self) -> float:
        """Seconds that only grow, for what is measured and due."""


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()
