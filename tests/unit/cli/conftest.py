"""The command `dsec` against a fake server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsec.cli.main import app
from libdsec.protocol.calls import Empty, LogAnswer, LogEntry, SandboxList
from libdsec.protocol.environment import BuildProgress, ImageConfig, ImageInfo, ImageList, LayerInfo
from libdsec.protocol.errors import (
    CommandNotStartedError,
    ConflictError,
    ImageNotFoundError,
    SandboxNotFoundError,
)
from libdsec.protocol.exec import ExecAnswer, OutputInfo
from libdsec.protocol.frames import STDERR, STDOUT
from libdsec.protocol.spec import SandboxInfo, SandboxSpec
from libdsec.testing import FakeCall, FakeServer, serving

IMAGE = ImageInfo("debian:12", "base", (LayerInfo("sha256:" + "0" * 64, 4096, 1 << 20, 9),), ImageConfig(), 0.0)


class Node:
    """A fake server that knows a few sandboxes and one image, and the command that speaks with it."""

    def __init__(self, server: FakeServer, url: str) -> None:
        self.server = server
        self.url = url
        self.sandboxes = {f"{name:0<24}": "running" for name in ("abc", "abd", "xyz")}
        self.images = [IMAGE]
        script(self)

    def run(self, *arguments: str, input: str | bytes | None = None) -> Any:
        result = CliRunner().invoke(app, list(arguments), input=input, env={"DSEC_URL": self.url, "COLUMNS": "200"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)

    def request(self, method: str) -> Any:
        """The last request of a method."""
        return [args for name, args in self.server.calls if name == method][-1]

    def info(self, sandbox: str) -> SandboxInfo:
        if sandbox not in self.sandboxes:
            raise SandboxNotFoundError(f"cannot find sandbox {sandbox}", sandbox=sandbox)
        spec = SandboxSpec("debian:12", labels={"task": "7\x1b[31m"})
        return SandboxInfo(sandbox, spec, self.sandboxes[sandbox], None, 0.0, 0.0, "node")


def script(node: Node) -> None:
    answers = node.server.answers

    @answers("sandbox.create")
    async def _(call: FakeCall) -> SandboxInfo:
        if call.args.spec.image != "debian:12":
            raise ImageNotFoundError(f"cannot find image {call.args.spec.image}")
        node.sandboxes["n" * 24] = "running"
        return node.info("n" * 24)

    @answers("sandbox.inspect")
    async def _(call: FakeCall) -> SandboxInfo:
        return node.info(call.args.sandbox)

    @answers("sandbox.list")
    async def _(call: FakeCall) -> SandboxList:
        states = ("running",) if not call.args.include_final else ("running", "stopped")
        return SandboxList(tuple(node.info(i) for i, state in node.sandboxes.items() if state in states))

    @answers("sandbox.stop")
    async def _(call: FakeCall) -> SandboxInfo:
        node.info(call.args.sandbox)
        node.sandboxes[call.args.sandbox] = "stopped"
        return node.info(call.args.sandbox)

    @answers("sandbox.logs")
    async def _(call: FakeCall) -> LogAnswer:
        return LogAnswer((LogEntry(0.5, "created", {"image": "debian:12"}),))

    @answers("image.list")
    async def _(call: FakeCall) -> ImageList:
        return ImageList(tuple(node.images))

    @answers("image.inspect")
    async def _(call: FakeCall) -> ImageInfo:
        if call.args.ref != "debian:12":
            raise ImageNotFoundError(f"cannot find image {call.args.ref}")
        return IMAGE

    @answers("image.remove")
    async def _(call: FakeCall) -> Empty:
        if call.args.ref == "debian:12":
            raise ConflictError(f"cannot remove {call.args.ref}: a sandbox uses it")
        return Empty()

    @answers("image.build")
    async def _(call: FakeCall) -> ImageInfo:
        call.event(BuildProgress("write", 5))
        return IMAGE

    @answers("exec")
    async def _(call: FakeCall) -> ExecAnswer:
        return await program(call)


async def program(call: FakeCall) -> ExecAnswer:
    """What the fake sandbox's commands do: `exit N`, `signal N`, `sleep`, `cat`, `env`; all else is not found."""
    name, *rest = call.args.argv
    if name == "exit":
        await call.send(STDOUT, b"out\n")
        await call.send(STDERR, b"err\n")
        return ExecAnswer("exited", int(rest[0]), stdout=OutputInfo(4, 4), stderr=OutputInfo(4, 4))
    if name == "signal":
        return ExecAnswer("signaled", signal=int(rest[0]), oom_kills=int(rest[0] == "9"))
    if name == "sleep":
        return ExecAnswer("timed_out", duration_us=1_000_000)
    if name == "cat":
        data = await call.receive() if call.args.stdin else b""
        await call.send(STDOUT, data)
        return ExecAnswer("exited", 0, stdout=OutputInfo(len(data), len(data)))
    raise CommandNotStartedError(f"cannot run {name!r}: no such program", kind="not_found", errno=2, stage="exec")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.delenv("DSEC_IMAGE", raising=False)
    with serving(f"{tmp_path}/api.sock") as server:
        yield Node(server, f"unix://{tmp_path}/api.sock")


@pytest.fixture
def dsec(node: Node) -> Callable[..., Any]:
    return node.run
