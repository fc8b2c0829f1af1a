"""A command log in a file: one JSON document, written as its steps come and read as a whole.

    {"format": "dsec-log", "generation": 1, "scope": ..., "steps": [...]}

A document that ends in `error` was cut short, and is refused.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

import msgspec

from libdsec.protocol.calls import METHODS, STEPS
from libdsec.protocol.errors import DSecError, IntegrityError, InvalidArgumentError
from libdsec.protocol.steps import OutputRecord, Step, StepState, request_digest, step_name

from .plain import from_plain, to_plain

FORMAT = "dsec-log"
GENERATION = 1
NIL = msgspec.msgpack.encode(None)


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a step gave on one stream: all of it in one of the two forms, or its size alone."""

    size: int = 0
    text: str | None = None
    base64: str | None = None


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step. Digests are SHA-256 in hexadecimal."""

    step: str
    seq: int
    track: str
    n: int
    method: str
    digest: str
    state: StepState
    began_at: float
    ended_at: float | None = None
    sandbox: str = ""
    request: Any = None
    answer: Any = None
    stdout: Output = Output()
    stderr: Output = Output()
    input_digest: str = ""
    opaque: str = ""
    principal: str = ""


class Document(msgspec.Struct, frozen=True):
    format: str
    generation: int
    scope: str
    steps: list[Entry]
    error: Any = None
    """Why it was cut short."""


class Log(msgspec.Struct, frozen=True):
    """A document that was read: its steps as the wire has them, in their order."""

    scope: str
    steps: tuple[Step, ...]


def head(scope: str) -> str:
    """Where a document begins; entries follow, separated by commas, then `tail`."""
    start = msgspec.json.encode({"format": FORMAT, "generation": GENERATION, "scope": scope}).decode()
    return f'{start[:-1]},"steps":['


def tail(error: DSecError | None = None) -> str:
    return "]}" if error is None else f'],"error":{msgspec.json.encode(error.body()).decode()}}}'


def entry(step: Step) -> Entry:
    """A step as a document has it."""
    return Entry(
        step=step_name(step.track, step.n),
        seq=step.seq,
        track=step.track,
        n=step.n,
        method=step.method,
        digest=step.digest.hex(),
        state=step.state,
        began_at=step.began_at,
        ended_at=step.ended_at,
        sandbox=step.sandbox,
        request=to_plain(step.request),
        answer=to_plain(step.answer),
        stdout=_output(step.stdout),
        stderr=_output(step.stderr),
        input_digest=step.input_digest.hex(),
        opaque=step.opaque,
        principal=step.principal,
    )


def line(step: Step) -> str:
    """An entry as one line of JSON."""
    return msgspec.json.encode(entry(step)).decode()


def parse(data: bytes) -> Log:
    """:raises InvalidArgumentError: not such a document, or of a later generation, or cut short.
    :raises IntegrityError: a step whose request is not the one that was recorded."""
    try:
        # what came from a sandbox is escaped, so that it is Unicode; what is not was never a document
        document = msgspec.json.decode(data, type=Document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"cannot read the log: {error}; write one with `dsec log SCOPE --json --outputs`"
        ) from None
    if document.format != FORMAT or not 1 <= document.generation <= GENERATION:
        raise InvalidArgumentError(
            f"cannot read format {document.format[:40]!r} of generation {document.generation}: this version reads "
            f"{FORMAT!r} up to generation {GENERATION}"
        )
    if document.error is not None:
        raise InvalidArgumentError(f"cannot use the log: its writing was cut short by {str(document.error)[:300]}")
    steps = tuple(_checked(_step(found)) for found in _unique(document.steps))
    return Log(document.scope, tuple(sorted(steps, key=lambda step: step.seq)))


def _unique(entries: list[Entry]) -> Iterable[Entry]:
    seen = set()
    for found in entries:
        if found.seq in seen:
            raise InvalidArgumentError(f"cannot use the log: it has two steps of seq {found.seq}")
        seen.add(found.seq)
        yield found


def _step(found: Entry) -> Step:
    return Step(
        seq=found.seq,
        track=found.track,
        n=found.n,
        method=found.method,
        digest=_hex(found.digest),
        state=found.state,
        began_at=found.began_at,
        sandbox=found.sandbox,
        ended_at=found.ended_at,
        request=msgspec.Raw(from_plain(found.request)),
        answer=msgspec.Raw(from_plain(found.answer)),
        stdout=_record(found.stdout),
        stderr=_record(found.stderr),
        input_digest=_hex(found.input_digest),
        opaque=found.opaque,
        principal=found.principal,
    )


def _checked(step: Step) -> Step:
    """The step itself, its request being the one that its digest was taken of."""
    name = step_name(step.track, step.n)
    if step.method not in STEPS:
        raise InvalidArgumentError(f"cannot use step {name}: {step.method[:80]!r} is no method that is a step")
    if bytes(step.request) == NIL:
        return step  # too large for a log that is read; it is skipped
    try:
        args = msgspec.msgpack.decode(step.request, type=METHODS[step.method][0])
    except msgspec.DecodeError as error:
        raise InvalidArgumentError(f"cannot use step {name}: its request is no {step.method} ({error})") from None
    if request_digest(step.method, args) != step.digest:
        raise IntegrityError(f"cannot use step {name}: its request does not match its digest; the log was changed")
    return step


def _output(record: OutputRecord) -> Output:
    if record.data is None or not record.size:
        return Output(record.size)
    try:
        return Output(record.size, text=record.data.decode())
    except UnicodeDecodeError:
        return Output(record.size, base64=base64.b64encode(record.data).decode())


def _record(output: Output) -> OutputRecord:
    if output.text is not None:
        data: bytes | None = output.text.encode()
    elif output.base64 is not None:
        data = _base64(output.base64)
    else:
        data = None if output.size else b""
    if data is not None and len(data) != output.size:
        raise InvalidArgumentError(f"cannot use the log: an output of {output.size} bytes has {len(data)}")
    return OutputRecord(output.size, data)


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgumentError("cannot use the log: an output is not base64") from None


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidArgumentError(f"cannot use the log: {text[:80]!r} is not hexadecimal") from None
