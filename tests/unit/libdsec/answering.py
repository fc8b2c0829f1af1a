"""A fake server that answers every step, and what came to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from libdsec import DSecClient, DSecContainerRunArgs
from libdsec.protocol.calls import STEPS, Empty
from libdsec.protocol.environment import ImageConfig, ImageInfo, LayerInfo
from libdsec.protocol.exec import ExecAnswer, SessionInfo
from libdsec.protocol.files import FileAnswer, FileInfo
from libdsec.protocol.frames import STDOUT
from libdsec.protocol.images import PackedDiff
from libdsec.protocol.spec import SandboxInfo, SandboxSpec
from libdsec.testing import FakeCall, FakeServer

ID = "s" * 24
INFO = SandboxInfo(ID, SandboxSpec("debian:12"), "running", None, 0.0, 0.0, "n")
ARGS = DSecContainerRunArgs(container_image="debian:12")
LAYER = LayerInfo("sha256:" + "0" * 64, 4096, 4096, 0)
PACKED = PackedDiff(ImageInfo("a:1", "workspace", (LAYER,), ImageConfig(), 0.0), LAYER, (), 0, 0)
ENTRY = FileInfo("f", "file", 1, 0o644, 0, 0, 0)


def answer_all(server: FakeServer) -> None:
    """Every step is answered, well and with nothing."""

    async def answer(call: FakeCall):
        if call.method == "file.list":
            await call.send_value(STDOUT, [ENTRY])
        if call.method == "file.watch":
            await call.send_value(STDOUT, [])
            await call.canceled.wait()
        return {
            "exec": ExecAnswer("exited", 0),
            "session.run": ExecAnswer("exited", 0),
            "session.open": SessionInfo(4, 100),
            "session.close": Empty(),
            "sandbox.pack_diff": PACKED,
        }.get(call.method, INFO if call.method.startswith("sandbox.") else FileAnswer(info=ENTRY))

    for method in STEPS:
        server.answers(method)(answer)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # nobody could set an event
        await asyncio.sleep(0)


async def go_away(server: FakeServer, client: DSecClient) -> None:
    """The server is gone and the client has seen it."""
    server.drop()
    server.reachable = False
    connection = client._channel._connection
    await until(lambda: connection is None or not connection.usable)


def tags(server: FakeServer) -> list[tuple[str, int] | None]:
    return [None if step is None else (step.track, step.n) for step in server.steps]
