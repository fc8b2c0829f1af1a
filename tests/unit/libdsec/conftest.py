"""Fake servers for coroutines (`with_fake`) and for code elsewhere (`fake_node`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from libdsec import DSecClient
from libdsec.protocol.calls import Empty
from libdsec.protocol.errors import DSecError, LeaseLostError, NotFoundError
from libdsec.protocol.frames import STDERR, STDOUT
from libdsec.protocol.jobs import LeaseHolder, LeaseInfo, LeaseRequest
from libdsec.protocol.steps import (
    INLINE_OUTPUT,
    LogReadAnswer,
    LogReadRequest,
    OutputRecord,
    Step,
    StepTag,
    request_digest,
)
from libdsec.testing import FakeCall, FakeServer, serving

Use = Callable[[FakeServer, DSecClient], Awaitable[None]]


class Clock:
    """Time that passes only where somebody sleeps, and at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        until = self.now + seconds
        await asyncio.sleep(0)
        self.now = max(self.now, until)  # sleeps at the same time take no longer than one


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def with_fake(request: pytest.FixtureRequest) -> Callable[[Use], None]:
    """Runs a coroutine with a fake server in memory and a client of it, on each event loop that people use."""

    def run(use: Use) -> None:
        async def main() -> None:
            async with asyncio.timeout(30), FakeServer() as server, DSecClient(endpoint=server) as client:
                await use(server, client)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run


@pytest.fixture
def fake_node(tmp_path: Path) -> Iterator[FakeServer]:
    """A fake server in a thread of its own, at `url`."""
    with serving(f"{tmp_path}/api.sock") as server:
        server.url = f"unix://{tmp_path}/api.sock"  # type: ignore[attr-defined]
        yield server


class FakeLog:
    """Makes a fake server keep a log: what was recorded is told by `log.read`, and leases are given."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.entries: list[tuple[Step, bytes, bytes]] = []
        """Each with its output in whole."""
        self.epoch = 0
        self.page = 3
        for method, handler in {
            "lease.take": self._take,
            "lease.renew": self._renew,
            "lease.release": self._release,
            "log.read": self._read,
            "log.output": self._output,
        }.items():
            server.answers(method)(handler)

    def record(
        self,
        track: str,
        n: int,
        method: str,
        args: msgspec.Struct,
        answer: msgspec.Struct | DSecError | None = None,
        stdout: bytes = b"",
        stderr: bytes = b"",
        **more: Any,
    ) -> None:
        """A step that has ended as `answer` says, or whose outcome is unknown."""
        inline = len(stdout) + len(stderr) <= INLINE_OUTPUT
        state = "unknown" if answer is None else "error" if isinstance(answer, DSecError) else "result"
        told = answer.body() if isinstance(answer, DSecError) else answer
        fields = {
            "seq": len(self.entries) + 1,
            "state": state,
            "digest": request_digest(method, args),
            "request": msgspec.Raw(msgspec.msgpack.encode(args)),
            "answer": msgspec.Raw(msgspec.msgpack.encode(told)),
            "stdout": OutputRecord(len(stdout), stdout if inline and stdout else None),
            "stderr": OutputRecord(len(stderr), stderr if inline and stderr else None),
            **more,
        }
        step = Step(track=track, n=n, method=method, began_at=0.0, **fields)
        self.entries.append((step, stdout, stderr))

    def asked(self, *methods: str) -> list[tuple[str, StepTag | None]]:
        """What came, calls about the log itself left out; of `methods` where some are given."""
        own = ("log.", "lease.")
        return [
            (method, step)
            for (method, _), step in zip(self.server.calls, self.server.steps, strict=True)
            if (method in methods if methods else not method.startswith(own))
        ]

    def _info(self, request: LeaseRequest | LeaseHolder) -> LeaseInfo:
        return LeaseInfo(request.kind, request.name, self.epoch, None, len(self.entries), 0.0, 60.0)

    async def _take(self, call: FakeCall) -> LeaseInfo:
        self.epoch += 1
        return self._info(call.args)

    async def _renew(self, call: FakeCall) -> LeaseInfo:
        if call.args.epoch != self.epoch:
            raise LeaseLostError("cannot renew: somebody else holds it", epoch=call.args.epoch, held=self.epoch)
        return self._info(call.args)

    async def _release(self, call: FakeCall) -> Empty:
        return Empty()

    async def _read(self, call: FakeCall) -> LogReadAnswer:
        asked: LogReadRequest = call.args
        found = [
            step if asked.requests else msgspec.structs.replace(step, request=msgspec.Raw(b"\xc0"))
            for step, _, _ in self.entries
            if step.seq > asked.after and asked.track in (None, step.track)
        ]
        if asked.limit:
            found = found[-asked.limit :] if asked.last else found[: asked.limit]
        for start in range(0, len(found), self.page):
            await call.send_value(STDOUT, found[start : start + self.page])
        return LogReadAnswer(len(found), len(self.entries))

    async def _output(self, call: FakeCall) -> Step:
        for step, stdout, stderr in self.entries:
            if (step.track, step.n) == (call.args.track, call.args.n):
                await call.send(STDOUT, stdout)
                await call.send(STDERR, stderr)
                return msgspec.structs.replace(step, stdout=OutputRecord(), stderr=OutputRecord())
        raise NotFoundError("cannot find the step")


@pytest.fixture
def fake_log() -> type[FakeLog]:
    return FakeLog
