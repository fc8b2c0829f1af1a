"""Recorded steps of one sandbox of a rollout, as the SDK asks for them."""

from __future__ import annotations

import msgspec

from libdsec import DSecClient, DSecContainerRunArgs, OutputLimit, Rollout
from libdsec.protocol.calls import CreateRequest
from libdsec.protocol.exec import (
    ExecAnswer,
    ExecRequest,
    OutputInfo,
)
from libdsec.protocol.files import (
    FileInfo,
)
from libdsec.protocol.spec import SandboxInfo

ID = "s" * 24
ARGS = DSecContainerRunArgs(container_image="debian:12", job="j")
SPEC = msgspec.structs.replace(ARGS.to_spec(), rollout="r")
INFO = SandboxInfo(ID, SPEC, "running", None, 0.0, 0.0, "n")
OK = ExecAnswer("exited", 0, stdout=OutputInfo(3, 3))
LIMIT = OutputLimit()
MODE = int("420")
"""Not the object that is the default, which would be left out where the SDK sends it."""

ENTRY = FileInfo("f", "file", 1, 0o644, 0, 0, 0)


def command(*argv: str, **more) -> ExecRequest:
    return ExecRequest(ID, argv, limit=LIMIT, **more)


def created(log, track: str = "main", n: int = 1) -> None:
    log.record(track, n, "sandbox.create", CreateRequest(SPEC, None, float("60")), INFO)


def ran(log, track: str, n: int, *argv: str, **more) -> None:
    log.record(track, n, "exec", command(*argv), OK, b"out", **more)


async def attached(client: DSecClient, log, **options) -> Rollout:
    rollout = await client.attach("r", **options)
    assert rollout.epoch == log.epoch
    return rollout
