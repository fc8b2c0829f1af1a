"""Calls of a sandbox by its driver, as tests make and hear them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from dsec.drivers.base import End, Instance
from libdsec.protocol.errors import BY_CODE, DSecError, SandboxFailedError
from libdsec.protocol.frames import END, STDERR, STDOUT

TIMEOUT_S = 20.0


class Listener:
    """A caller that grants what it reads, and can stop doing so."""

    def __init__(self, *, greedy: bool = True) -> None:
        self.output = {STDOUT: bytearray(), STDERR: bytearray()}
        self.ended: set[int] = set()
        self.granted = 0
        self.greedy = greedy
        self.paused = False
        self.answer: Any = None
        self.refusal: DSecError | None = None
        self.endings = 0
        self.call: Any = None
        self._news = asyncio.Event()

    def data(self, stream: int, payload: bytes, flags: int) -> bool:
        self.output[stream] += payload
        if flags & END:
            self.ended.add(stream)
        if self.greedy and payload:
            self.call.credit(stream, len(payload))
        self._news.set()
        return True

    def when_drained(self, resume: Callable[[], None]) -> None:
        resume()

    def credit(self, stream: int, amount: int) -> None:
        self.granted += amount
        self._news.set()

    def event(self, payload: bytes) -> None:
        self._news.set()

    def result(self, payload: bytes) -> None:
        self.endings += 1
        self.answer = msgspec.msgpack.decode(payload)
        self._news.set()

    def error(self, payload: bytes) -> None:
        self.endings += 1
        body = msgspec.msgpack.decode(payload)
        self.refusal = BY_CODE[body["code"]](body["message"], **body["details"])
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def end(self) -> Any:
        await self.until(lambda: self.endings > 0)
        if self.refusal is not None:
            raise self.refusal
        return self.answer


def exec_args(*argv: str, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "argv": argv,
        "env": {"PATH": "/bin"},
        "cwd": "/",
        "user": "root",
        "timeout_ms": 0,
        "stdin": False,
        "stream": False,
        "limit": {"head": 1000, "tail": 1000},
        "pty": False,
        "rows": 24,
        "cols": 80,
    }
    return values | changes


def start(instance: Instance, *argv: str, listener: Listener | None = None, tag: str = "", **changes: Any) -> Listener:
    listener = listener or Listener()
    args = exec_args(*argv, **changes)
    listener.call = instance.call("exec", args, listener, streaming=args["stream"] or args["stdin"], tag=tag)
    return listener


def ignore(end: End) -> None: ...


GONE = SandboxFailedError("cannot finish: the test is over")
