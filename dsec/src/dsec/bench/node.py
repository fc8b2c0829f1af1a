"""The node that is measured: one of our own with its own state and sockets, or the user's.

A node of our own runs as a child. Its state lies in the ground's directory; its sockets, whose paths must be short, in
a directory below /tmp that begins with the ground's name, which was drawn at random. Whatever state the node is in at
the end, its processes (known by that name in their command line) are ended, what is mounted below is unmounted, and its
control groups (known by its edge's name) are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dsec.linux.mounts import umount
from libdsec import DSecClient
from libdsec.protocol.errors import DeadlineExceededError, DSecError, UnavailableError

from .native import finish

_START_S = 60.0
_STOP_S = 60.0

_SOCKETS = Path("/tmp")

_ID_BASE = 0x2000_0000
"""Far from the default, so that our sandboxes and the user's share no id."""

_ID_RANGES = 4095
_SECOND_ID_BASE = _ID_BASE + 65_536 * (_ID_RANGES + 1)


class Node(Protocol):
    state_dir: Path
    owned: bool
    """Whether it starts and ends with `running`, so that its own memory can be told."""

    def running(self) -> contextlib.AbstractAsyncContextManager[DSecClient]:
        """The node, up, and a client of it; can be entered again after its end."""
        ...


class UsersNode:
    """Whatever DSEC_URL or the machine's own node is. Only what we create there is taken away."""

    owned = False

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[DSecClient]:
        async with DSecClient() as client:
            yield client


class OwnNode:
    owned = True

    def __init__(
        self,
        ground: Path,
        name: str = "",
        program: Sequence[str] = ("dsec", "serve"),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Nodes of other names can run at the same time. `program`: a module and its arguments; `settings`: variables
        of its environment."""
        self._ground = ground
        self._program = program
        self._settings = dict(settings or {})
        self.state_dir = ground / f"state{name}"
        self._run_dir = _SOCKETS / f"{ground.name}-run{name}"
        self._log = ground / f"serve{name}.log"
        self._id_base = _ID_BASE if not name else _SECOND_ID_BASE
        self._edges: set[str] = set()
        self._process: asyncio.subprocess.Process | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[DSecClient]:
        self.state_dir.mkdir(exist_ok=True)
        self._run_dir.mkdir(mode=0o700)
        client: DSecClient | None = None
        try:
            self._process = await self._started()
            client = await self._connected(self._process)
            self._edges.add((await client.server_info()).node.edge_prefix)
            yield client
        finally:
            process, self._process = self._process, None
            await self._end(client, process)

    async def killed_and_started_again(self) -> None:
        """SIGKILL to the server and another one in its place: it is being started when this returns."""
        if self._process is None:
            raise UnavailableError("cannot kill the node: it does not run")
        await finish(self._process)
        self._process = await self._started()

    async def _started(self) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", *self._program, "--state-dir", str(self.state_dir), "--run-dir", str(self._run_dir)),
                env={
                    **os.environ,
                    "DSEC_ID_BASE": str(self._id_base),
                    "DSEC_ID_RANGES": str(_ID_RANGES),
                    **self._settings,
                },
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _connected(self, process: asyncio.subprocess.Process) -> DSecClient:
        client = DSecClient(f"unix://{self._run_dir / 'api.sock'}")
        deadline = asyncio.get_running_loop().time() + _START_S
        while True:
            try:
                return await client.open()
            except UnavailableError:
                late = asyncio.get_running_loop().time() >= deadline
                if process.returncode is not None or late:
                    raise UnavailableError(
                        f"cannot start a node to measure; its log ends with:\n{self._tail()}"
                    ) from None
            await asyncio.sleep(0.05)

    def _tail(self) -> str:
        return self._log.read_bytes()[-2000:].decode("utf-8", "replace").strip()

    async def _end(self, client: DSecClient | None, process: asyncio.subprocess.Process | None) -> None:
        """The polite way first, then the sure one."""
        if client is not None and process is not None:
            try:
                async with asyncio.timeout(_STOP_S):
                    await client.shutdown_server()
                    await client.close()
                    await process.wait()
            except (DSecError, TimeoutError):
                # not even that: what follows needs no answer
                await client.close()
        if process is not None:
            await finish(process)
        await _end_processes_of(self._run_dir)
        for place in (self.state_dir, self._run_dir):
            unmount_below(place)
        shutil.rmtree(self._run_dir)
        for edge in self._edges:
            _remove_cgroups(f"dsec-{edge}")


async def _end_processes_of(ground: Path) -> None:
    """:raises DeadlineExceededError: one that does not die, which the kernel holds."""
    for _ in range(500):
        left = list(_processes_of(ground))
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.02)
    raise DeadlineExceededError(f"cannot end processes {left[:10]} of {ground}: they do not die")


def _processes_of(ground: Path) -> Iterator[int]:
    """All but this one."""
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and int(entry.name) != os.getpid() and is_of(ground, Path(entry.path)):
            yield int(entry.name)


def is_of(ground: Path, process: Path) -> bool:
    """Whether a process (`/proc/PID`) names the directory in its command line; one that has ended names nothing."""
    try:
        return os.fsencode(ground.name) in (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _remove_cgroups(name: str, root: Path = Path("/sys/fs/cgroup")) -> None:
    """Of all hierarchies; a node that ended as it should has left none."""
    for top in (root / name, *root.glob(f"*/{name}")):
        for directory, _, _ in os.walk(top, topdown=False):
            os.rmdir(directory)


def unmount_below(directory: Path) -> None:
    """Every mount of this namespace below the directory, the last one first."""
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        path = line.split()[4].encode().decode("unicode_escape")
        if path.startswith(f"{directory}/"):
            umount(path, lazy=True)
