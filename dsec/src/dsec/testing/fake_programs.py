"""The programs that a fake sandbox has."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from libdsec.protocol.errors import CommandNotStartedError
from libdsec.protocol.frames import STDERR, STDOUT

from .fake_call import FakeCall

Answer = dict[str, Any]
Program = Callable[[FakeCall, dict[str, Any]], Coroutine[Any, Any, Answer]]


class _Output:
    """What a program printed, collected and cut, or streamed."""

    def __init__(self, call: FakeCall, args: dict[str, Any]) -> None:
        self._call, self._stream, self._limit = call, args["stream"], args["limit"]
        self._kept: dict[int, bytes] = {STDOUT: b"", STDERR: b""}
        self._total = {STDOUT: 0, STDERR: 0}

    async def print(self, text: bytes, stream: int = STDOUT) -> bool:
        self._total[stream] += len(text)
        if self._stream:
            return await self._call.write(stream, text)
        self._kept[stream] += text
        return not self._call.canceled

    async def finish(self, **answer: Any) -> Answer:
        infos = {}
        for stream, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
            kept, total = self._kept[stream], self._total[stream]
            head = min(len(kept), self._limit["head"])
            tail = min(len(kept) - head, self._limit["tail"])
            if not self._stream:
                await self._call.write(stream, kept[:head] + kept[len(kept) - tail :])
            self._call.end_stream(stream)
            infos[name] = {"total": total, "head": head, "tail": tail}
        return {"ended": "exited", "exit_code": 0, "signal": None, "duration_us": 1, **infos, **answer}


async def run_program(call: FakeCall, args: dict[str, Any]) -> Answer:
    """:raises CommandNotStartedError: no such program, directory or user."""
    if args["cwd"] != "/" and not args["cwd"].startswith("/tmp"):
        raise _not_started("no_such_directory", "cwd", args["cwd"])
    if not args["user"].replace(":", "").isdigit() and args["user"] != "root":
        raise _not_started("no_such_user", "user", args["user"])
    program = PROGRAMS.get(args["argv"][0].removeprefix("/bin/"))
    if program is None:
        raise _not_started("not_found", "exec", args["argv"][0])
    return await program(call, args)


def _not_started(kind: str, stage: str, what: str) -> CommandNotStartedError:
    return CommandNotStartedError(f"cannot run {what!r}: {kind}", kind=kind, errno=2, stage=stage)


async def _true(call: FakeCall, args: dict[str, Any]) -> Answer:
    return await _Output(call, args).finish()


async def _false(call: FakeCall, args: dict[str, Any]) -> Answer:
    return await _Output(call, args).finish(exit_code=1)


async def _echo(call: FakeCall, args: dict[str, Any]) -> Answer:
    output = _Output(call, args)
    await output.print(" ".join(args["argv"][1:]).encode() + b"\n")
    return await output.finish()


async def _env(call: FakeCall, args: dict[str, Any]) -> Answer:
    output = _Output(call, args)
    await output.print("".join(f"{k}={v}\n" for k, v in args["env"].items()).encode())
    return await output.finish()


async def _pwd(call: FakeCall, args: dict[str, Any]) -> Answer:
    output = _Output(call, args)
    await output.print(args["cwd"].encode() + b"\n")
    return await output.finish()


async def _cat(call: FakeCall, args: dict[str, Any]) -> Answer:
    output = _Output(call, args)
    while args["stdin"] and (part := await call.read()) is not None:
        await output.print(part)
    if call.canceled:
        return await output.finish(ended="canceled", exit_code=None)
    return await output.finish()


async def _sleep(call: FakeCall, args: dict[str, Any]) -> Answer:
    output = _Output(call, args)
    wanted, timeout = float(args["argv"][1]), args["timeout_ms"] / 1000
    within = timeout == 0 or wanted <= timeout
    if await call.wait_canceled(wanted if within else timeout):
        return await output.finish(ended="canceled", exit_code=None)
    return await output.finish() if within else await output.finish(ended="timed_out", exit_code=None)


async def _yes(call: FakeCall, args: dict[str, Any]) -> Answer:
    output = _Output(call, args)
    line = b"y\n" * 8192
    while args["stream"] and await output.print(line):
        pass
    return await output.finish(ended="canceled", exit_code=None)


PROGRAMS: dict[str, Program] = {
    "true": _true,
    "false": _false,
    "echo": _echo,
    "env": _env,
    "pwd": _pwd,
    "cat": _cat,
    "sleep": _sleep,
    "yes": _yes,
}
