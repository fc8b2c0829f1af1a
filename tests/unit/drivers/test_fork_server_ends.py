"""Whatever state the fork server is in, closing ends it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dsec.drivers.container import launch as launch_module
from dsec.drivers.container.fork_server import ForkServer
from dsec.drivers.container.sandboxes import Sandboxes
from libdsec.protocol.errors import UnavailableError

pytestmark = pytest.mark.needs("linux")


def mute_server(directory: Path) -> ForkServer:
    """A program that takes its place and never says a word."""
    program = directory / "mute"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    return ForkServer(
        aether=str(program),
        socket_path=str(directory / "s"),
        log_path=str(directory / "log"),
        epoch="e",
        timeout_s=0.2,
        owner=Sandboxes(asyncio.create_task),
    )


def test_a_server_that_cannot_be_written_down_does_not_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def execute(*what: Any) -> subprocess.Popen[bytes]:
        started.append(real(*what))
        return started[-1]

    real = launch_module._execute
    monkeypatch.setattr(launch_module, "_execute", execute)
    mute_server(tmp_path)
    with pytest.raises(UnavailableError):
        launch_module.launch(str(tmp_path / "mute"), str(tmp_path / "s"), str(tmp_path / "log"), str(tmp_path))
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def recorded_pid(directory: Path) -> int:
    return int(json.loads((directory / "s.pid").read_text())["pid"])


def test_a_connect_that_was_canceled_leaves_no_server(tmp_path: Path) -> None:
    async def use() -> int:
        server = mute_server(tmp_path)
        starting = asyncio.create_task(server.start())
        await asyncio.sleep(0)  # it was launched, and its hello is waited for
        pid = recorded_pid(tmp_path)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        await server.close()
        return pid

    pid = asyncio.run(use())
    assert not os.path.exists(f"/proc/{pid}")
    assert not (tmp_path / "s").exists()


def test_one_that_says_nothing_is_ended(tmp_path: Path) -> None:
    async def use() -> int:
        server = mute_server(tmp_path)
        with pytest.raises(UnavailableError, match="did not say hello"):
            await server.start()
        pid = recorded_pid(tmp_path)
        await server.close()
        return pid

    assert not os.path.exists(f"/proc/{asyncio.run(use())}")
