"""The real server: started once by many, killed while calls are under way, ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from libdsec import DSecClient
from libdsec.errors import DSecError, OutcomeUnknownError, UnavailableError
from libdsec.protocol.environment import BuildProgress, ImageInfo

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether")


@pytest.fixture
def own_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Directories of a node that does not run yet; whatever was started there is ended."""
    for name in ("RUN", "STATE"):
        monkeypatch.setenv(f"DSEC_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.delenv("DSEC_URL", raising=False)
    yield tmp_path
    command(["serve", "--stop"])


def command(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dsec", *arguments], capture_output=True, text=True, timeout=90)


def test_ten_processes_at_once_start_one_server(own_node: Path):
    processes = [
        subprocess.Popen([sys.executable, "-m", "dsec", "ls", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(10)
    ]
    for process in processes:
        out, err = process.communicate(timeout=90)
        assert (process.returncode, json.loads(out)) == (0, []), err
    log = (own_node / "run/serve.log").read_text()
    assert log.count("event=serving") == 1
    first = json.loads(command(["serve", "--background", "--json"]).stdout)["pid"]
    assert json.loads(command(["serve", "--background", "--json"]).stdout)["pid"] == first
    assert json.loads(command(["serve", "--stop", "--json"]).stdout) == {"stopped": first}
    assert json.loads(command(["serve", "--stop", "--json"]).stdout) == {"stopped": None}
    assert json.loads(command(["version", "--json"]).stdout)["server"] is None


def test_a_server_tells_prometheus_where_it_is_asked_to(own_node: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("DSEC_METRICS", address)
        refused = command(["serve", "--background"])
        assert refused.returncode != 0
        assert f"cannot serve metrics at {address}" in refused.stdout + refused.stderr
    assert command(["serve", "--background"]).returncode == 0
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        told = answer.read().decode()
    assert "\ndsec_sandboxes 0.0\n" in told
    assert "\ndsec_server_process_cpu_seconds_total " in told
    assert command(["serve", "--stop"]).returncode == 0


def start_endless_build(client: DSecClient, directory: Path) -> tuple[asyncio.Task[ImageInfo], asyncio.Event]:
    """From a tar whose one member is a terabyte of zeros; the event says that it has begun to be written."""
    info = tarfile.TarInfo("zeros")
    info.size = 1 << 40
    (directory / "endless.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT))
    os.truncate(directory / "endless.tar", 1 << 41)
    begun = asyncio.Event()

    def told(step: BuildProgress) -> None:
        if step.stage == "write":
            begun.set()

    return asyncio.ensure_future(client.build_image("endless:1", f"tar:{directory}/endless.tar", progress=told)), begun


def test_a_server_killed_under_calls(own_node: Path):
    async def main() -> None:
        async with asyncio.timeout(100), DSecClient() as client:
            first = (await client.server_info()).pid
            building, begun = start_endless_build(client, own_node)
            await begun.wait()
            os.kill(first, signal.SIGKILL)
            with pytest.raises((OutcomeUnknownError, UnavailableError)):
                await building
            # the next call finds the socket without a server, and starts another
            second = await client.server_info()
            assert second.pid != first
            assert await client.list() == ()

    asyncio.run(main())


def test_a_server_that_is_ended_ends_its_builds(own_node: Path):
    async def main() -> None:
        async with asyncio.timeout(100), DSecClient() as client:
            building, begun = start_endless_build(client, own_node)
            await begun.wait()
            stopped = await asyncio.to_thread(command, ["serve", "--stop"])
            assert stopped.returncode == 0, stopped.stderr
            with pytest.raises(DSecError):
                await building
        assert os.listdir(own_node / "state" / "building") == []
        assert (own_node / "run/serve.log").read_text().count("event=ended") == 1

    asyncio.run(main())


def test_doctor_needs_no_server(own_node: Path):
    done = command(["doctor", "--json"])
    findings = json.loads(done.stdout)["findings"]
    assert {"kernel", "overlay-idmapped"} <= {finding["name"] for finding in findings}
    assert not (own_node / "run/api.sock").exists()
