"""The time that waits and leases are reckoned by."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Clock(Protocol):
    def time(self) -> float:
        """Seconds that only ever grow, from no special moment."""

    async def sleep(self, seconds: float) -> None: ...


class LoopClock:
    """The event loop's own."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
