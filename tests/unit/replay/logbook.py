"""Logs of a few steps, and fresh sandboxes that are a dictionary of scripted answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from dsec.replay.document import Log
from libdsec.protocol.calls import CreateRequest
from libdsec.protocol.errors import DSecError
from libdsec.protocol.exec import ExecAnswer, ExecRequest, OutputInfo
from libdsec.protocol.frames import STDERR, STDOUT
from libdsec.protocol.spec import SandboxInfo, SandboxSpec
from libdsec.protocol.steps import OutputRecord, Step, request_digest

BOX = "recorded0000000000000000"

encode = msgspec.msgpack.encode


def info(sandbox: str = BOX, state: str = "running") -> SandboxInfo:
    return SandboxInfo(sandbox, SandboxSpec("debian:12"), state, None, 1.0, 2.0, "node")


class Logbook:
    """Writes a log, one step a second."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def add(self, method: str, args: msgspec.Struct, answer: Any, **fields: Any) -> Step:
        seq = len(self.steps) + 1
        values = {
            "seq": seq,
            "track": "main",
            "n": seq,
            "method": method,
            "digest": request_digest(method, args),
            "state": "error" if isinstance(answer, DSecError) else "result",
            "began_at": float(seq),
            "ended_at": seq + 0.5,
            "sandbox": getattr(args, "sandbox", BOX),
            "request": msgspec.Raw(encode(args)),
            "answer": msgspec.Raw(encode(answer.body() if isinstance(answer, DSecError) else answer)),
        }
        self.steps.append(Step(**{**values, **fields}))
        return self.steps[-1]

    def create(self, answer: Any = None, **fields: Any) -> Step:
        spec = SandboxSpec("debian:12", env={"A": "1"}, rollout="r", job="j", labels={"l": "1"})
        return self.add("sandbox.create", CreateRequest(spec, "key"), answer or info(), **{"sandbox": BOX, **fields})

    def exec(self, *argv: str, out: bytes = b"", code: int = 0, **fields: Any) -> Step:
        answer = ExecAnswer("exited", code, duration_us=7, stdout=OutputInfo(len(out), len(out)))
        record = OutputRecord(len(out), out)
        return self.add("exec", ExecRequest(BOX, argv), answer, **{"stdout": record, **fields})

    def log(self) -> Log:
        return Log("r", tuple(self.steps))


class FakeNode:
    """Says of every command what its script says; the first argument is the name."""

    def __init__(self) -> None:
        self.made: list[CreateRequest] = []
        self.stopped: list[str] = []
        self.said: list[tuple[str, str, Any]] = []
        self.scripts: dict[str, Callable[[int], bytes | DSecError]] = {}
        """Name → output or error by the number of the fresh sandbox, from 0."""
        self.answers: dict[str, Callable[[Any], Any]] = {}
        self.begun = asyncio.Event()
        self.gates: dict[str, asyncio.Event] = {}

    async def say(self, method: str, args: Any, take: Any, *, stdin: bytes | None = None, timeout: float) -> Any:
        assert timeout > 0
        if method == "sandbox.create":
            self.made.append(args)
            return info(f"{f'fresh{len(self.made) - 1}':0<24}")
        self.begun.set()
        self.said.append((args.sandbox, method, args))
        if method == "sandbox.stop":
            self.stopped.append(args.sandbox)
            return info(args.sandbox, "stopped")
        if method in self.answers:
            return self.answers[method](args)
        assert method == "exec"
        return await self._exec(args, take)

    async def _exec(self, args: ExecRequest, take: Any) -> ExecAnswer:
        name = args.argv[0]
        if name in self.gates:
            await self.gates[name].wait()
        for opened in args.argv[1:]:
            self.gates[opened].set()
        out = self.scripts.get(name, lambda _: b"")(int(args.sandbox[5]))
        if isinstance(out, DSecError):
            raise out
        take(STDOUT, out[:1])
        take(STDOUT, out[1:])
        take(STDERR, b"")
        return ExecAnswer("exited", 0, duration_us=99, stdout=OutputInfo(len(out), len(out)))
