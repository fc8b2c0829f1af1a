"""Data to a caller under its credit."""

from __future__ import annotations

import asyncio

from dsec.bus import Caller
from libdsec.protocol.frames import WINDOW


class Flow:
    """The answering end of a call that the log answers, and what its task sends through."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.gone = False
        """The caller has canceled, or is no more: nothing further is to be sent."""
        self._windows: dict[int, int] = {}
        self._news = asyncio.Event()

    def data(self, stream: int, payload: bytes, flags: int) -> None: ...

    def event(self, payload: bytes) -> None: ...

    def credit(self, stream: int, amount: int) -> None:
        self._windows[stream] = self._windows.get(stream, WINDOW) + amount
        self._news.set()

    def cancel(self) -> None:
        self.gone = True
        self._news.set()

    def abandon(self) -> None:
        self.cancel()

    async def send(self, stream: int, payload: bytes) -> bool:
        """One DATA, when the caller has granted it and is not congested. False: the caller has gone."""
        while self._windows.get(stream, WINDOW) < len(payload):
            if not await self.wait():
                return False
        if self.gone:
            return False
        self._windows[stream] = self._windows.get(stream, WINDOW) - len(payload)
        if not self.caller.data(stream, payload, 0):
            drained = asyncio.Event()
            self.caller.when_drained(drained.set)
            await drained.wait()
        return not self.gone

    def wake(self) -> None:
        """There is news for whoever waits."""
        self._news.set()

    async def wait(self) -> bool:
        """For credit, `wake` or the caller's end. False: the caller has gone. It lasts at most as long as the
        caller's connection."""
        if not self.gone:
            await self._news.wait()
            self._news.clear()
        return not self.gone
