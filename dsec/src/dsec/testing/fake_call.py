"""One call in a fake sandbox: streams with windows, and an answer that is kept until it is recorded, as an init does.

Its caller goes when the edge does; the next edge may give it another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dsec.bus import Caller
from libdsec.protocol.frames import DATA_CHUNK, END, WINDOW


class FakeCall:
    """The answering end, and what a fake program sees of it."""

    def __init__(
        self,
        caller: Caller,
        streaming: bool,
        tag: str = "",
        awake: asyncio.Event | None = None,
        forget: Callable[[FakeCall], object] = lambda call: None,
    ) -> None:
        """While `awake` is not set it does nothing; `forget` is told when its answer need not be kept any more."""
        self.tag = tag
        self.acknowledged = False
        self._caller: Caller | None = caller
        self._streaming = streaming
        self._forget = forget
        self._done = False
        self._kept: list[tuple[int, bytes, int]] = []
        self._answer: Callable[[Caller], None] | None = None
        self._awake = awake or asyncio.Event()
        if awake is None:
            self._awake.set()
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

    def acknowledge(self) -> None:
        """See `dsec.drivers.base.Acknowledging`."""
        if self.tag and not self.acknowledged:
            self.acknowledged = True
            self._forget(self)

    @property
    def running(self) -> bool:
        return not self._done

    def leave(self) -> None:
        """Its edge has gone."""
        self._caller = None

    def meet(self, caller: Caller) -> None:
        """Another edge has come: it gets what was collected, and the answer."""
        self._caller = caller
        self._windows = {}
        for stream, payload, flags in self._kept:
            caller.data(stream, payload, flags)
        self._news.set()
        if self._answer is not None:
            self._deliver(self._answer)

    async def write(self, stream: int, payload: bytes) -> bool:
        """Send under credit; False when the call was canceled meanwhile."""
        for start in range(0, len(payload), DATA_CHUNK):
            part = payload[start : start + DATA_CHUNK]
            await self._awake.wait()
            while self._windows.get(stream, WINDOW) < len(part):
                if not await self._wait():
                    return False
            self._windows[stream] = self._windows.get(stream, WINDOW) - len(part)
            if not self._data(stream, part, 0) and self._caller is not None:
                drained = asyncio.Event()
                self._caller.when_drained(drained.set)
                await drained.wait()
        return not self.canceled

    def end_stream(self, stream: int) -> None:
        self._data(stream, b"", END)

    async def read(self) -> bytes | None:
        """The next input, granted at once; None at its end or when canceled."""
        while not self._input:
            if self._input_ended or not await self._wait():
                return None
        payload = self._input.popleft()
        if payload and not self._done and self._caller is not None:
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
        payload = msgspec.msgpack.encode(answer)
        self._end(lambda caller: caller.result(payload))

    def error(self, payload: bytes) -> None:
        self._end(lambda caller: caller.error(payload))

    def _data(self, stream: int, payload: bytes, flags: int) -> bool:
        if self._done:
            return True
        if not self._streaming:
            self._kept.append((stream, payload, flags))
        return self._caller is None or self._caller.data(stream, payload, flags)

    def _end(self, answer: Callable[[Caller], None]) -> None:
        if not self._done:
            self._done = True
            self._answer = answer
            self._deliver(answer)

    def _deliver(self, answer: Callable[[Caller], None]) -> None:
        if self._caller is not None:
            answer(self._caller)
            if not self.tag:
                self._forget(self)

    async def _wait(self) -> bool:
        """For anything new; False when canceled."""
        if not self.canceled:
            self._news.clear()
            await self._news.wait()
        return not self.canceled
