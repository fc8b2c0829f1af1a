"""The calls of the service, by name, with their request and answer types.

A CALL frame's payload is the map `{"method": NAME, "args": {...}}`; a RESULT's payload is the answer type. Which
permission each needs and who handles it stands in the apiserver's route table; which streams it has stands in the
types' docstrings.
"""

from __future__ import annotations

from typing import Any

import msgspec

from . import environment, exec, files, images, jobs, nodes, spec, steps
from .errors import WireError


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    method: str
    args: msgspec.Raw = msgspec.Raw(b"\x80")
    step: steps.StepTag | None = None
    """Its place in the command log; None: on track `other`, numbered by the edge."""


class Hello(msgspec.Struct, frozen=True):
    """The first frame in each direction of every connection, on call 0."""

    generation: int
    role: str
    """`client`, `apiserver`, `edge`, `fork-server`, `init`."""
    epoch: str = ""
    """Edge only: drawn at its start. A peer that has seen a newer edge refuses an older one."""
    version: str = ""
    max_payload: int = 0


class CreateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    spec: spec.SandboxSpec
    idempotency_key: str | None = None
    """A repeated create with the same key returns the same sandbox; with another spec it is a conflict."""
    timeout_s: float = 60.0


class SandboxRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """sandbox.inspect, sandbox.pause, sandbox.resume and sandbox.stop."""

    sandbox: str


class SandboxListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    labels: dict[str, str] = {}
    job: str | None = None
    rollout: str | None = None
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


class DrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """server.drain: take nothing new, wait for calls that run, and end; sandboxes go on without a server, and the
    next one adopts them. What still runs after `timeout_s` goes on unheard, and its answer is kept."""

    timeout_s: float = 30.0


class ServerInfo(msgspec.Struct, frozen=True):
    version: str
    generation: int
    pid: int
    node: nodes.NodeStatus


METHODS: dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct]]] = {
    "server.info": (Empty, ServerInfo),
    "server.shutdown": (Empty, Empty),
    "server.drain": (DrainRequest, Empty),
    "node.doctor": (Empty, nodes.DoctorReport),
    "sandbox.create": (CreateRequest, spec.SandboxInfo),
    "sandbox.inspect": (SandboxRequest, spec.SandboxInfo),
    "sandbox.list": (SandboxListRequest, SandboxList),
    "sandbox.stop": (SandboxRequest, spec.SandboxInfo),
    "sandbox.logs": (LogRequest, LogAnswer),
    "sandbox.pause": (SandboxRequest, spec.SandboxInfo),
    "sandbox.resume": (SandboxRequest, spec.SandboxInfo),
    "sandbox.pack_diff": (images.PackDiffRequest, images.PackedDiff),
    "sandbox.diff": (images.SandboxDiffRequest, images.ChangeCount),
    "log.read": (steps.LogReadRequest, steps.LogReadAnswer),
    "log.output": (steps.LogOutputRequest, steps.Step),
    "lease.take": (jobs.LeaseRequest, jobs.LeaseInfo),
    "lease.renew": (jobs.LeaseHolder, jobs.LeaseInfo),
    "lease.release": (jobs.LeaseHolder, Empty),
    "rollout.list": (jobs.RolloutListRequest, jobs.RolloutList),
    "job.list": (jobs.JobListRequest, jobs.JobList),
    "job.inspect": (jobs.JobRequest, jobs.JobInfo),
    "job.pause": (jobs.JobRequest, jobs.JobAnswer),
    "job.resume": (jobs.JobRequest, jobs.JobAnswer),
    "job.stop": (jobs.JobRequest, jobs.JobAnswer),
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
    "image.pull": (images.ImagePullRequest, environment.ImageInfo),
    "image.list": (environment.ImageListRequest, environment.ImageList),
    "image.inspect": (environment.ImageNameRequest, environment.ImageInfo),
    "image.remove": (environment.ImageNameRequest, Empty),
    "image.verify": (environment.ImageNameRequest, environment.ImageInfo),
    "image.push": (images.ImagePushRequest, images.ImagePushed),
    "image.export": (images.ImageExportRequest, Empty),
    "image.diff": (images.ImageDiffRequest, images.ChangeCount),
    "image.history": (environment.ImageNameRequest, images.ImageHistory),
    "image.fetch": (images.ImageFetchRequest, environment.ImageInfo),
    "image.stats": (images.ImageStatsRequest, images.ImageStatsAnswer),
    "image.publish": (images.ImagePublishRequest, images.ImagePublished),
    "image.pin": (images.ImagePinRequest, environment.ImageInfo),
    "image.gc": (images.ImageGcRequest, images.ImageGcAnswer),
}
"""Name → (request type, answer type)."""

_encoder = msgspec.msgpack.Encoder()
_call_decoder = msgspec.msgpack.Decoder(Call)


STEPS = frozenset(
    method
    for method in METHODS
    if method.startswith(("session.", "file."))
    or method in ("exec", "sandbox.create", "sandbox.inspect", "sandbox.pause", "sandbox.resume", "sandbox.stop")
    or method == "sandbox.pack_diff"
)
"""The methods that are steps of a command log."""


def encode_call(method: str, args: msgspec.Struct, step: steps.StepTag | None = None) -> bytes:
    """The payload of a CALL frame."""
    call: dict[str, Any] = {"method": method, "args": args}
    if step is not None:
        call["step"] = step
    return _encoder.encode(call)


def decode_call(payload: bytes) -> Call:
    """:raises WireError: not a call."""
    try:
        return _call_decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise WireError(f"cannot read a CALL: {error}") from None
