"""Saying steps to a log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from dsec.bus import Answerer
from dsec.commandlog import Begun, CommandLog, Joined, OpenStep, Outcome, Recorded, RecordedStep
from dsec.testing.fake_clock import FakeClock
from libdsec.protocol.exec import ExecRequest
from libdsec.protocol.frames import WINDOW
from libdsec.protocol.steps import Step, StepTag

SANDBOX = "edgeaaaa" + "b" * 16
encode = msgspec.msgpack.encode
ANSWER = encode({"ended": "exited", "exit_code": 0})


class Logbook:
    """A log, and the ways in which tests speak to it."""

    def __init__(self, log: CommandLog, clock: FakeClock) -> None:
        self.log = log
        self.clock = clock

    def say(
        self,
        n: int,
        command: str = "true",
        *,
        track: str = "main",
        scope: str = SANDBOX,
        sandbox: str = SANDBOX,
        method: str = "exec",
        again: bool = False,
        opaque: str = "",
    ) -> Begun | Recorded | Joined:
        args = ExecRequest(sandbox, ("sh", "-c", command))
        return self.log.begin(
            scope=scope,
            tag=StepTag(track, n, again=again),
            sandbox=sandbox,
            method=method,
            args=args,
            request=encode(args),
            principal="root",
            opaque=opaque,
        )

    async def begin(self, n: int, command: str = "true", **options: Any) -> OpenStep:
        said = self.say(n, command, **options)
        assert isinstance(said, Begun)
        await begun(said.entry)
        return said.entry

    async def run(self, n: int, command: str = "true", output: bytes = b"", **options: Any) -> OpenStep:
        entry = await self.begin(n, command, **options)
        await end(entry, output)
        return entry

    def answer(self, n: int, command: str = "true", **options: Any) -> RecordedStep:
        said = self.say(n, command, **options)
        assert isinstance(said, Recorded)
        return said.step


Open = Callable[..., AbstractAsyncContextManager[Logbook]]
"""The fixture `open_log`."""


async def begun(entry: OpenStep) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    entry.when_begun(lambda: done.set_result(None), done.set_exception)
    await done


async def end(
    entry: OpenStep,
    stdout: bytes | list[bytes] = b"",
    stderr: bytes = b"",
    *,
    state: Any = "result",
    answer: bytes = ANSWER,
    **options: Any,
) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    pieces = stdout if isinstance(stdout, list) else [stdout]
    entry.end(
        state=state,
        answer=answer,
        stdout=pieces,
        stderr=[stderr],
        then=lambda: done.set_result(None),
        failed=done.set_exception,
        **options,
    )
    await done


async def withdraw(entry: OpenStep) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    entry.withdraw(lambda: done.set_result(None))
    await done


async def outcome(joined: Joined) -> Outcome:
    told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    joined.entry.join(told.set_result)
    return await told


class Client:
    """A caller that grants what it has read, `window` bytes at a time, and holds its answerer to its credit."""

    def __init__(self, grant: int = WINDOW // 2) -> None:
        self.streams: dict[int, list[bytes]] = {}
        self.answer: bytes | None = None
        self.refusal: bytes | None = None
        self.reads = True
        self.answerer: Answerer | None = None
        self.ended = asyncio.Event()
        self.got = asyncio.Event()
        self._grant = grant
        self._allowed: dict[int, int] = {}
        self._ungranted: dict[int, int] = {}

    def data(self, stream: int, payload: bytes, flags: int) -> bool:
        assert not self.ended.is_set()
        self._allowed[stream] = self._allowed.get(stream, WINDOW) - len(payload)
        assert self._allowed[stream] >= 0, "sent beyond the window"
        self.streams.setdefault(stream, []).append(payload)
        self._ungranted[stream] = self._ungranted.get(stream, 0) + len(payload)
        if self.reads:
            asyncio.get_running_loop().call_soon(self.grant, stream)
        self.got.set()
        return True

    def grant(self, stream: int) -> None:
        amount = self._ungranted[stream]
        if amount >= self._grant and self.answerer is not None:
            self._ungranted[stream] = 0
            self._allowed[stream] += amount
            self.answerer.credit(stream, amount)

    def when_drained(self, resume: Any) -> None:
        asyncio.get_running_loop().call_soon(resume)

    def credit(self, stream: int, amount: int) -> None: ...

    def event(self, payload: bytes) -> None: ...

    def result(self, payload: bytes) -> None:
        assert not self.ended.is_set()
        self.answer = payload
        self.ended.set()

    def error(self, payload: bytes) -> None:
        assert not self.ended.is_set()
        self.refusal = payload
        self.ended.set()

    def output(self, stream: int) -> bytes:
        return b"".join(self.streams.get(stream, []))

    def steps(self) -> list[Step]:
        """What log.read has sent so far."""
        frames = self.streams.get(2, [])
        return [step for frame in frames for step in msgspec.msgpack.decode(frame, type=list[Step])]

    def code(self) -> str:
        assert self.refusal is not None
        code = msgspec.msgpack.decode(self.refusal)["code"]
        assert isinstance(code, str)
        return code


class Tasks:
    """`spawn` for what the log runs; nothing outlives the test."""

    def __init__(self) -> None:
        self.all: list[asyncio.Task[Any]] = []

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self.all.append(task)
        return task

    async def end(self) -> None:
        for task in self.all:
            with contextlib.suppress(asyncio.CancelledError):
                await task
