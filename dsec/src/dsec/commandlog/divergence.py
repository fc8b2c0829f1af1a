"""What a program asked for, in words, so that its author sees where it left its recorded way."""

from __future__ import annotations

from typing import Any

import msgspec

from libdsec.protocol.errors import ReplayDivergedError
from libdsec.protocol.steps import details, step_name

MAX_WORDS = 400
_MAX_VALUE = 160


def diverged(
    scope: str, track: str, n: int, expected: tuple[str, bytes], got: tuple[str, bytes]
) -> ReplayDivergedError:
    """`expected` and `got`: method and the arguments' map."""
    recorded, now = _words(*expected, beside=got), _words(*got, beside=expected)
    return ReplayDivergedError(
        f"cannot replay step {step_name(track, n)} of {scope}: recorded is {recorded}, the program asks for {now}",
        **details(scope, track, n),
        expected=recorded,
        got=now,
    )


def _words(method: str, request: bytes, beside: tuple[str, bytes]) -> str:
    """The method, and those arguments that tell it from the other."""
    mine, other = _fields(request), _fields(beside[1])
    if method == beside[0]:
        mine = {
            name: mine.get(name)
            for name in (*mine, *(name for name in other if name not in mine))
            if (name in mine) != (name in other) or mine[name] != other[name]
        }
    parts = [f"{name}={_short(repr(value), _MAX_VALUE)}" for name, value in mine.items()]
    return _short(" ".join([method, *parts]), MAX_WORDS)


def _fields(request: bytes) -> dict[str, Any]:
    try:
        fields = msgspec.msgpack.decode(request)
    except msgspec.DecodeError:
        fields = None
    if not isinstance(fields, dict):
        return {"args": f"{len(request)} bytes"}
    return {str(name): value for name, value in fields.items() if name != "sandbox"}


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
