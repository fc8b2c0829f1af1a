"""The calls of the service, by name, with their request and answer types.

A CALL frame's payload is the map `{"method": NAME, "args": {...}}`; a RESULT's payload is the answer type. Which
permission each needs and who handles it stands in the apiserver's route table; which streams it has stands in the
types' docstrings.
"""

from __future__ import annotations

from typing import Any

import msgspec

from . import environment, exec, files, nodes, spec
from .errors import WireError


class Call(msgspec.Struct, frozen=True):
    method: str
    args: msgspec.Raw = msgspec.Raw(b"\x80")


class Hello(msgspec.Struct, frozen=True):
    """The first frame in each direction of every connection, on call 0."""

    generation: int
    role: str
    """`client`, `apiserver`, `edge`, `fork-server`, `init`."""
    epoch: str = ""
    """Edge only: drawn at its start. A peer that has seen a newer edge refuses an older one."""
    version: str = ""
    max_payload: int = 0


class CreateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    spec: spec.SandboxSpec
    idempotency_key: str | None = None
    """A repeated create with the same key returns the same sandbox; with another spec it is a conflict."""
    timeout_s: float = 60.0


class SandboxRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """sandbox.inspect and sandbox.stop."""

    sandbox: str


class SandboxListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    labels: dict[str, str] = {}
    include_final: bool = False
    """Also those that have stopped or failed and are still remembered."""
    after: str | None = None
    """Only ids above this one: the next page."""


class SandboxList(msgspec.Struct, frozen=True):
    """One page, in the order of ids; a page fits into one frame."""

    sandboxes: tuple[spec.SandboxInfo, ...]
    next: str | None = None
    """Not None: there are more, ask again with this as `after`."""


class LogRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """sandbox.logs: what happened to a sandbox, oldest first."""

    sandbox: str
    limit: int = 1000


class LogEntry(msgspec.Struct, frozen=True):
    at: float
    event: str
    """`created`, `running`, `exec`, `session`, `stopped`, `failed`, ..."""
    detail: dict[str, Any] = {}


class LogAnswer(msgspec.Struct, frozen=True):
    entries: tuple[LogEntry, ...]


class Empty(msgspec.Struct, frozen=True):
    """No arguments, or nothing to say."""


class ServerInfo(msgspec.Struct, frozen=True):
    version: str
    generation: int
    pid: int
    node: nodes.NodeStatus


METHODS: dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct]]] = {
    "server.info": (Empty, ServerInfo),
    "server.shutdown": (Empty, Empty),
    "node.doctor": (Empty, nodes.DoctorReport),
    "sandbox.create": (CreateRequest, spec.SandboxInfo),
    "sandbox.inspect": (SandboxRequest, spec.SandboxInfo),
    "sandbox.list": (SandboxListRequest, SandboxList),
    "sandbox.stop": (SandboxRequest, spec.SandboxInfo),
    "sandbox.logs": (LogRequest, LogAnswer),
    "exec": (exec.ExecRequest, exec.ExecAnswer),
    "session.open": (exec.SessionOpenRequest, exec.SessionInfo),
    "session.run": (exec.SessionRunRequest, exec.ExecAnswer),
    "session.close": (exec.SessionCloseRequest, Empty),
    "file.stat": (files.FileRequest, files.FileAnswer),
    "file.mkdir": (files.FileRequest, files.FileAnswer),
    "file.remove": (files.FileRequest, files.FileAnswer),
    "file.archive": (files.FileRequest, files.FileAnswer),
    "file.read": (files.FileReadRequest, files.FileAnswer),
    "file.write": (files.FileWriteRequest, files.FileAnswer),
    "file.move": (files.FileMoveRequest, files.FileAnswer),
    "file.list": (files.FileListRequest, files.FileAnswer),
    "file.extract": (files.FileExtractRequest, files.FileAnswer),
    "file.watch": (files.FileWatchRequest, files.FileAnswer),
    "image.build": (environment.ImageBuildRequest, environment.ImageInfo),
    "image.list": (environment.ImageListRequest, environment.ImageList),
    "image.inspect": (environment.ImageNameRequest, environment.ImageInfo),
    "image.remove": (environment.ImageNameRequest, Empty),
    "image.verify": (environment.ImageNameRequest, environment.ImageInfo),
}
"""Name → (request type, answer type)."""

_encoder = msgspec.msgpack.Encoder()
_call_decoder = msgspec.msgpack.Decoder(Call)


def encode_call(method: str, args: msgspec.Struct) -> bytes:
    """The payload of a CALL frame."""
    return _encoder.encode(Call(method, msgspec.Raw(_encoder.encode(args))))


def decode_call(payload: bytes) -> Call:
    """:raises WireError: not a call."""
    try:
        return _call_decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise WireError(f"cannot read a CALL: {error}") from None
