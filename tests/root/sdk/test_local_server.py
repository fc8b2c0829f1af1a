"""Starting the local server: once for many, with its log when it fails, and not for just anybody.

What is started here is a stand-in that answers `server.info`; the real one is in test_server.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from libdsec import DSecClient
from libdsec._transport.local_server import LocalEndpoint
from libdsec.errors import PermissionDeniedError, UnavailableError

pytestmark = pytest.mark.needs("root")

SERVER = """
import asyncio, os, sys
from libdsec.protocol.calls import ServerInfo
from libdsec.protocol.nodes import NodeStatus
from libdsec.testing import FakeServer

async def main():
    directory = os.environ["DSEC_RUN_DIR"]
    with open(directory + "/started", "a") as file:
        file.write(f"{os.getpid()} {os.getsid(0)}\\n")
    async with FakeServer() as server:
        @server.answers("server.info")
        async def _(call):
            return ServerInfo("fake", 1, os.getpid(), NodeStatus("n", "e", (), 1, 0, 1, 0, 0, True))
        await server.listen(directory + "/api.sock")
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def run_dir(tmp_path: Path):
    """Whatever was started for it is ended, also what has not come to tell its pid yet."""
    yield tmp_path
    mark = f"DSEC_RUN_DIR={tmp_path}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def client_of(run_dir: Path, code: str = SERVER, timeout: float = 30) -> DSecClient:
    endpoint = LocalEndpoint(str(run_dir), [sys.executable, "-c", code])
    return DSecClient(endpoint=endpoint, connect_timeout=timeout)


def test_many_clients_at_once_start_one_server(run_dir: Path):
    async def main() -> None:
        clients = [client_of(run_dir) for _ in range(10)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(client.open() for client in clients))
        pids = {(await client.server_info()).pid for client in clients}
        lines = (run_dir / "started").read_text().splitlines()
        assert len(lines) == 1
        pid, session = map(int, lines[0].split())
        assert pids == {pid}
        assert session != os.getsid(0)
        with open(f"/proc/{pid}/stat") as stat:  # noqa: ASYNC230
            assert int(stat.read().rsplit(")", 1)[1].split()[1]) != os.getpid()  # no child of ours
        for client in clients:
            await client.close()

    asyncio.run(main())


def test_a_killed_server_is_started_again_by_the_next_call(run_dir: Path):
    async def main() -> None:
        async with client_of(run_dir) as client:
            first = (await client.server_info()).pid
            os.kill(first, signal.SIGKILL)
            assert (await client.server_info()).pid != first

    asyncio.run(main())


def test_one_that_ends_at_once_shows_its_log(run_dir: Path):
    async def main() -> None:
        with pytest.raises(UnavailableError, match=r"(?s)ended at once.*serve\.log.*no loop device"):
            await client_of(run_dir, "import sys; sys.exit('no loop device')").open()

    asyncio.run(main())


def test_one_that_never_listens_is_waited_for_so_long(run_dir: Path):
    code = SERVER.split("async with", maxsplit=1)[0] + "    await asyncio.sleep(60)\n\nasyncio.run(main())\n"

    async def main() -> None:
        with pytest.raises(UnavailableError, match="does not listen yet"):
            await client_of(run_dir, code, timeout=1.5).open()

    asyncio.run(main())


def test_another_user_is_told_what_to_do(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    async def main() -> None:
        with pytest.raises(PermissionDeniedError, match="DSEC_URL"):
            await client_of(run_dir).open()

    asyncio.run(main())
    assert not (run_dir / "started").exists()


def test_a_run_directory_that_cannot_be_is_said_by_name(tmp_path: Path):
    (tmp_path / "run").symlink_to("nowhere")

    async def main() -> None:
        with pytest.raises(UnavailableError, match=r"cannot start a local server in .*/run: .*DSEC_RUN_DIR"):
            await client_of(tmp_path / "run").open()

    asyncio.run(main())


def test_a_program_that_cannot_be_started_is_said_with_its_log(run_dir: Path):
    async def main() -> None:
        endpoint = LocalEndpoint(str(run_dir), ["/nowhere/server"])
        with pytest.raises(UnavailableError, match=r"(?s)ended at once.*/nowhere/server"):
            await DSecClient(endpoint=endpoint).open()

    asyncio.run(main())
