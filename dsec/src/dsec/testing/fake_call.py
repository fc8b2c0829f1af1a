"""One call in a fake sandbox: streams with windows, as an init keeps them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from dsec.bus import Caller
from libdsec.protocol.frames import DATA_CHUNK, END, WINDOW


class FakeCall:
    """The answering end, and what a fake program sees of it."""

    def __init__(self, caller: Caller, streaming: bool) -> None:
        self._caller = caller
        self._streaming = streaming
        self._done = False
        self._windows: dict[int, int] = {}
        self._input: deque[bytes] = deque()
        self._input_ended = False
        self._news = asyncio.Event()
        self.canceled = False
        self.events: list[dict[str, Any]] = []

    def data(self, stream: int, payload: bytes, flags: int) -> None:
        self._input.append(payload)
        self._input_ended = self._input_ended or bool(flags & END)
        self._news.set()

    def credit(self, stream: int, amount: int) -> None:
        self._windows[stream] = self._windows.get(stream, WINDOW) + amount
        self._news.set()

    def event(self, payload: bytes) -> None:
        self.events.append(msgspec.msgpack.decode(payload))
        self._news.set()

    def cancel(self) -> None:
        self.canceled = True
        self._news.set()

    def abandon(self) -> None:
        if self._streaming:
            self.cancel()

    async def write(self, stream: int, payload: bytes) -> bool:
        """Send under credit; False when the call was canceled meanwhile."""
        for start in range(0, len(payload), DATA_CHUNK):
            part = payload[start : start + DATA_CHUNK]
            while self._windows.get(stream, WINDOW) < len(part):
                if not await self._wait():
                    return False
            self._windows[stream] = self._windows.get(stream, WINDOW) - len(part)
            if not self._done and not self._caller.data(stream, part, 0):
                drained = asyncio.Event()
                self._caller.when_drained(drained.set)
                await drained.wait()
        return not self.canceled

    def end_stream(self, stream: int) -> None:
        if not self._done:
            self._caller.data(stream, b"", END)

    async def read(self) -> bytes | None:
        """The next input, granted at once; None at its end or when canceled."""
        while not self._input:
            if self._input_ended or not await self._wait():
                return None
        payload = self._input.popleft()
        if payload and not self._done:
            self._caller.credit(1, len(payload))
        return payload

    async def wait_canceled(self, seconds: float) -> bool:
        """Sleep; True when a cancel came first."""
        try:
            async with asyncio.timeout(seconds):
                while await self._wait():
                    pass
        except TimeoutError:
            return False
        return True

    def result(self, answer: Mapping[str, Any]) -> None:
        if not self._done:
            self._done = True
            self._caller.result(msgspec.msgpack.encode(answer))

    def error(self, payload: bytes) -> None:
        if not self._done:
            self._done = True
            self._caller.error(payload)

    async def _wait(self) -> bool:
        """For anything new; False when canceled."""
        if not self.canceled:
            self._news.clear()
            await self._news.wait()
        return not self.canceled
