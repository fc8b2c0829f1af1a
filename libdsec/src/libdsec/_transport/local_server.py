"""The local node: a server that is started when none runs, and outlives who started it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import select
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence

from ..protocol.errors import PermissionDeniedError, UnavailableError
from .connection import Connection
from .endpoint import UnixEndpoint

_POLL_S = 0.02
_LOG_TAIL = 2000
_LOG_LIMIT = 4 * 1024 * 1024


class LocalEndpoint:
    """The server of this machine, at `api.sock` in the run directory.

    When nobody listens there, one client starts `dsec serve` while it holds the lock file `start.lock`; the others wait
    for the lock and then find it running. The server is no child of the client's: it has a session of its own, writes
    to `serve.log`, and stays when the client ends.
    """

    def __init__(self, run_directory: str, command: Sequence[str] | None = None) -> None:
        """`command` is what serves; without it the installed platform's own."""
        self._directory = run_directory
        self._command = command
        self._log_start = 0
        self._socket = UnixEndpoint(os.path.join(run_directory, "api.sock"))

    def __str__(self) -> str:
        return str(self._socket)

    @property
    def log(self) -> str:
        return os.path.join(self._directory, "serve.log")

    async def connect(self, timeout: float) -> Connection:
        """As `Endpoint.connect`; starts the server first where none runs.

        :raises UnavailableError: it did not come up; the message ends with what it logged.
        :raises PermissionDeniedError: none runs, and this user cannot start one.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        connection = await self._socket.connect_if_listening(timeout)
        if connection is not None:
            return connection
        self._check_startable()
        async with self._lock(deadline):
            # another client may have started it while we waited for the lock
            connection = await self._socket.connect_if_listening(timeout)
            if connection is not None:
                return connection
            try:
                pid = self._spawn()
            except (OSError, subprocess.SubprocessError) as error:
                raise self._unstartable(error) from None
            with contextlib.closing(_Started(pid)) as server:
                return await self._first_connection(server, deadline)

    def _check_startable(self) -> None:
        if not sys.platform.startswith("linux"):
            raise UnavailableError(
                "cannot start a local server: it needs Linux; set DSEC_URL to one that runs elsewhere"
            )
        if os.geteuid() != 0:
            raise PermissionDeniedError(
                f"cannot start a local server at {self}: it needs root; run as root, or set DSEC_URL to one that runs"
            )

    def _unstartable(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"cannot start a local server in {self._directory}: {error}; free it, or choose another DSEC_RUN_DIR"
        )

    @contextlib.asynccontextmanager
    async def _lock(self, deadline: float) -> AsyncIterator[None]:
        path = os.path.join(self._directory, "start.lock")
        try:
            os.makedirs(self._directory, mode=0o755, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unstartable(error) from None
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await self._pause(deadline, f"another process holds {path}")
            yield
        finally:
            os.close(descriptor)

    async def _pause(self, deadline: float, why: str) -> None:
        if asyncio.get_running_loop().time() >= deadline:
            raise UnavailableError(f"cannot start a local server in time: {why}{self._log_tail()}")
        await asyncio.sleep(_POLL_S)

    def _spawn(self) -> int:
        """Start the server; its pid. A shell in between gives it to PID 1, so that it never is a zombie of ours."""
        command = self._command or _serve_command()
        with open(self._rotated_log(), "ab") as log:
            shell = subprocess.run(
                ["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                cwd="/",
                timeout=10,
                check=True,
                env={**os.environ, "DSEC_RUN_DIR": self._directory},
            )
        return int(shell.stdout)

    def _rotated_log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            self._log_start = os.stat(self.log).st_size
            if self._log_start > _LOG_LIMIT:
                os.replace(self.log, self.log + ".1")
                self._log_start = 0
        return self.log

    async def _first_connection(self, server: _Started, deadline: float) -> Connection:
        while True:
            ended = server.has_ended()
            remaining = deadline - asyncio.get_running_loop().time()
            connection = await self._socket.connect_if_listening(max(remaining, _POLL_S))
            if connection is not None:
                return connection
            if ended:
                raise UnavailableError(f"cannot start a local server: it ended at once{self._log_tail()}")
            await self._pause(deadline, "it does not listen yet")

    def _log_tail(self) -> str:
        try:
            with open(self.log, "rb") as log:
                # only what this start has logged, and of that the end
                log.seek(max(self._log_start, os.fstat(log.fileno()).st_size - _LOG_TAIL))
                tail = log.read().decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return ""
        return f"; the end of {self.log}:\n{tail}" if tail else f"; {self.log} is empty"


class _Started:
    """Tells whether a process that is not our child still runs."""

    def __init__(self, pid: int) -> None:
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = -1

    def has_ended(self) -> bool:
        return self._pidfd < 0 or bool(select.select([self._pidfd], [], [], 0)[0])

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)


def _serve_command() -> list[str]:
    """:raises UnavailableError: the platform is not installed here."""
    if importlib.util.find_spec("dsec") is not None:
        return [sys.executable, "-m", "dsec", "serve"]
    program = shutil.which("dsec")
    if program is None:
        raise UnavailableError(
            "cannot start a local server: the distribution `dsec` is not installed; install it, or set DSEC_URL"
        )
    return [program, "serve"]
