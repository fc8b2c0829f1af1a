"""Steps of a command log in words."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable
from typing import Any

import msgspec

from libdsec.protocol.errors import ErrorBody
from libdsec.protocol.exec import ExecAnswer
from libdsec.protocol.steps import Step, step_name

from .output import amount, printable

WHAT_WIDTH = 56

HEADERS = ("STEP", "TIME", "TOOK", "WHAT", "OUTCOME", "OUTPUT")

_GOOD, _BAD, _OPEN = "32", "31", "33"


def row(step: Step) -> tuple[str, ...]:
    """As `HEADERS` name it."""
    size = step.stdout.size + step.stderr.size
    return (
        step_name(step.track, step.n),
        moment(step.began_at),
        took(step),
        what(step),
        outcome(step),
        "not kept" if step.opaque else amount(size) if size else "-",
    )


def colour(step: Step) -> str:
    """Of its outcome on a terminal."""
    if step.state in ("running", "unknown"):
        return _OPEN
    if step.state == "error":
        return _BAD
    answer = _answer(step, ExecAnswer) if step.method in ("exec", "session.run") else None
    return _GOOD if answer is None or answer.exit_code == 0 else _BAD


def moment(at: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d}"


def took(step: Step) -> str:
    if step.ended_at is None:
        return "-"
    seconds = max(0.0, step.ended_at - step.began_at)
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds / 60:.3g} min"


def what(step: Step, limit: int = WHAT_WIDTH) -> str:
    """The request in one line, cut where it is long."""
    args = _decoded(step.request)
    if not isinstance(args, dict):
        return step.method
    describe = _WORDS.get(step.method, _path)
    try:
        words = describe(args)
    except (TypeError, ValueError, LookupError, AttributeError):
        words = ""  # a field that is not what this version knows: the method says enough
    name = "" if step.method in ("exec", "session.run") else step.method
    return cut(printable(" ".join(filter(None, (name, words)))), limit)


def outcome(step: Step) -> str:
    if step.state == "running":
        return "running"
    if step.state == "unknown":
        return "unknown"
    if step.state == "error":
        body = _answer(step, ErrorBody)
        return "error" if body is None else body.code
    answer = _answer(step, ExecAnswer) if step.method in ("exec", "session.run") else None
    return "ok" if answer is None else _ended(answer)


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _ended(answer: ExecAnswer) -> str:
    memory = ", out of memory" if answer.oom_kills else ""
    if answer.ended == "exited":
        return f"exit {answer.exit_code}{memory}"
    if answer.ended == "signaled":
        try:
            name = signal.Signals(answer.signal or 0).name
        except ValueError:
            name = f"signal {answer.signal}"
        return name + memory
    return "timeout" if answer.ended == "timed_out" else "canceled"


def _answer(step: Step, kind: type[Any]) -> Any:
    try:
        return msgspec.msgpack.decode(step.answer, type=kind)
    except msgspec.DecodeError:
        return None


def _decoded(value: msgspec.Raw) -> Any:
    try:
        return msgspec.msgpack.decode(value)
    except msgspec.DecodeError:
        return None


def _exec(args: dict[str, Any]) -> str:
    argv = args["argv"]
    if len(argv) == 3 and argv[1] == "-c" and argv[0].endswith("/sh"):
        return str(argv[2])  # as `run_shell` was given it
    return shlex.join(argv)


def _path(args: dict[str, Any]) -> str:
    return " → ".join(str(args[name]) for name in ("path", "to") if name in args)


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "exec": _exec,
    "session.run": lambda args: f"[{args['session']}] {args['command']}",
    "session.open": lambda args: shlex.join(args.get("shell", ())),
    "session.close": lambda args: f"[{args['session']}]",
    "sandbox.create": lambda args: str(args["spec"].get("workspace") or args["spec"]["image"]),
}
