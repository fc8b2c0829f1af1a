"""Whether a recorded step can be run again, and if not, why."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from libdsec.protocol.calls import METHODS
from libdsec.protocol.errors import ErrorBody
from libdsec.protocol.exec import ExecAnswer, ExecRequest
from libdsec.protocol.steps import Step

from .document import NIL

PACK = "sandbox.pack_diff"

READS = frozenset({"file.stat", "file.read", "file.list", "file.archive", "file.watch", "sandbox.inspect", PACK})
"""They change nothing in a sandbox: to skip one leaves no gap."""

NO_INPUT = hashlib.sha256(b"").digest()

_GIVEN_UP = frozenset({"deadline_exceeded", "outcome_unknown"})


class Skip(NamedTuple):
    why: str
    gap: bool
    """It may have changed its sandbox."""


def reason_to_skip(step: Step) -> Skip | None:
    """None: it can be run, and held against its record.

    :raises msgspec.DecodeError: its request or answer is not one.
    """
    why = _why(step)
    return None if why is None else Skip(why, step.method not in READS)


def takes_input(step: Step) -> bool:
    if step.method == "exec":
        return msgspec.msgpack.decode(step.request, type=ExecRequest).stdin
    return step.method in ("file.write", "file.extract")


def _why(step: Step) -> str | None:
    if step.opaque:
        return step.opaque
    if step.method == PACK:
        return "it made an image, and a name is given once"
    if bytes(step.request) == NIL:
        return "its request is too large for the log's readers"
    if step.state == "running":
        return "it had not ended when the log was read"
    if step.state == "unknown":
        return "nobody knows how it ended"
    if bytes(step.answer) == NIL:
        return "its answer is too large for the log's readers"
    if takes_input(step) and step.input_digest != NO_INPUT:
        return "its input is not in the log"
    if step.state == "error":
        code = msgspec.msgpack.decode(step.answer, type=ErrorBody).code
        return "it was given up, or ran out of time" if code in _GIVEN_UP else None
    answer = msgspec.msgpack.decode(step.answer, type=METHODS[step.method][1])
    if isinstance(answer, ExecAnswer) and answer.ended == "canceled":
        return "its caller gave it up"
    return None
