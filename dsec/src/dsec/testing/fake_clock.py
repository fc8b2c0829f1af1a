"""Time that passes when a test says so."""

from __future__ import annotations


class FakeClock:
    """Implements `dsec.edge.clock.Clock`."""

    def __init__(self, epoch: float = 1_700_000_000.0) -> None:
        self._epoch = epoch
        self._passed = 0.0

    def now(self) -> float:
        return self._epoch + self._passed

    def monotonic(self) -> float:
        return 1000.0 + self._passed

    def advance(self, seconds: float) -> None:
        self._passed += seconds
