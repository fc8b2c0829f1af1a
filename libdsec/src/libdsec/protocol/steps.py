"""Steps: the numbered operations of a command log.

A *log* has a *scope*: a sandbox, or a rollout with all its sandboxes. Each operation in it is a *step* `(track, n)`,
numbered by its client from 1, contiguous a track; what runs at the same time has tracks of its own. A step said again
returns its recorded outcome and runs nothing; another request at a recorded step is `ReplayDivergedError`.

Tracks, so that the same program names the same steps when it runs again:
- `main` is where a program starts; `NAME` instead when it asks for a track of its own;
- a sandbox made by step n of track T has the track `T/n`, and so has a session opened by it;
- `key:KEY` holds one step, that of a call with an idempotency key;
- `create` of a sandbox's own log holds one step, how it was made: no program can say it again;
- on every other track (`cli`, `other`) the edge numbers: such steps are recorded, never replayed.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

import msgspec

from .errors import InvalidArgumentError
from .ids import is_sandbox_id

MAIN, CLI, OTHER, CREATE = "main", "cli", "other", "create"
KEY_PREFIX = "key:"
MAX_TRACK = 320
MAX_N = 2**53

INLINE_OUTPUT = 4096
"""Bytes of recorded output that an entry of a log carries itself; of more it tells the size alone, and `log.output`
has the bytes."""

MAX_RECORDED_OUTPUT = 16 * 1024 * 1024
"""Bytes of output that are recorded of one step (above the largest `OutputLimit`). A step that gave more (a large
file that was read) is recorded without its output and cannot be replayed."""

_SCOPE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")


class StepTag(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a CALL says of its place in the log."""

    track: str
    n: int = 0
    """0: the edge numbers it."""
    epoch: int = 0
    """Of the caller's lease on the scope; 0 is none."""
    again: bool = False
    """Run it though it is recorded with an unknown outcome: the caller has looked and chosen."""


StepState = Literal["running", "result", "error", "unknown"]
"""`error` is an answer too: what was refused is refused again. What surely did not run and may be tried again
(`retry` other than `never`) is no step at all."""


class OutputRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a step gave on one stream."""

    size: int = 0
    data: bytes | None = None
    """All of it, where it is at most INLINE_OUTPUT bytes together with the other stream."""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a log."""

    seq: int
    """Its place in the scope's log, from 1."""
    track: str
    n: int
    method: str
    digest: bytes
    state: StepState
    began_at: float
    sandbox: str = ""
    ended_at: float | None = None
    request: msgspec.Raw = msgspec.Raw(b"\xc0")
    """The arguments' map, where they were asked for (`LogReadRequest.requests`)."""
    answer: msgspec.Raw = msgspec.Raw(b"\xc0")
    """The RESULT's or the ERROR's map; nil while it runs or where the outcome is unknown."""
    stdout: OutputRecord = OutputRecord()
    """Stream 2. Of `file.read` the bytes read, of `file.list` its arrays one after the other."""
    stderr: OutputRecord = OutputRecord()
    input_digest: bytes = b""
    """SHA-256 of what the client sent on stream 1, END included; empty where the step takes no input, or ended before
    all of it had come (a command that did not read on)."""
    opaque: str = ""
    """Why it cannot be replayed, in words: it was a terminal, had interactive input, gave more than is recorded."""
    principal: str = ""


class LogReadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """log.read: DATA on stream 2, each frame a MessagePack array of `Step` (of at most 131,072 bytes, or one step
    alone), then `LogReadAnswer`. With `follow` it goes on with each step as it ends, until CANCEL."""

    scope: str
    after: int = 0
    """Only steps with a larger seq."""
    track: str | None = None
    sandbox: str | None = None
    limit: int = 0
    """Steps at most; 0 is all. With `last`, the last ones."""
    last: bool = False
    requests: bool = True
    follow: bool = False


class LogReadAnswer(msgspec.Struct, frozen=True):
    steps: int
    """How many were sent."""
    last_seq: int
    """Of the scope."""


class LogOutputRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """log.output: a step's output as DATA on streams 2 and 3, then the answer, a `Step` without output."""

    scope: str
    track: str
    n: int


_canonical = msgspec.msgpack.Encoder(order="deterministic").encode


def request_digest(method: str, args: msgspec.Struct) -> bytes:
    """What tells one request from another: SHA-256 over the method and the arguments, the sandbox left out, so that a
    log can be run against another sandbox. Requests leave out fields that have their default; a field added later
    changes no digest."""
    if getattr(args, "sandbox", ""):
        args = msgspec.structs.replace(args, sandbox="")
    return hashlib.sha256(method.encode() + b"\0" + _canonical(args)).digest()


def check_scope_name(name: str, what: str) -> str:
    """The name of a rollout or job, itself.

    :raises InvalidArgumentError: not 1 to 128 of letters, digits and `. _ / -`, or it looks like a sandbox id.
    """
    if not _SCOPE.fullmatch(name) or is_sandbox_id(name):
        raise InvalidArgumentError(
            f"cannot use {what} {name[:140]!r}: it has 1 to 128 of A-Z a-z 0-9 . _ / -, begins and ends with a letter "
            "or digit, and must not look like a sandbox id (24 of a-z 0-9)",
            field=what,
        )
    return name


def check_tag(tag: StepTag) -> None:
    """:raises InvalidArgumentError: a track or number that cannot be."""
    track = tag.track
    if not 0 < len(track) <= MAX_TRACK or not track.isprintable():
        raise InvalidArgumentError(
            f"cannot use track {track[:64]!r}: it has 1 to {MAX_TRACK} printable characters", field="step.track"
        )
    if not 0 <= tag.n <= MAX_N or tag.epoch < 0:
        raise InvalidArgumentError(f"cannot use step {tag.n} of epoch {tag.epoch}", field="step.n")


def step_name(track: str, n: int) -> str:
    """As messages and tables show it: `main/3#7`."""
    return f"{track}#{n}"


def details(scope: str, track: str, n: int) -> dict[str, Any]:
    """How errors name a step."""
    return {"scope": scope, "track": track, "n": n}
