"""A node whose server and fork server die and are started again, many times a minute."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from node_process import WAIT_S, NodeProcess

ZYGOTE = Path(__file__).with_name("zygote.py")


class Forked:
    """A server that the zygote has forked. As `subprocess.Popen`, as far as it is needed here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = -1

    def poll(self) -> int | None:
        """Not None when it has ended."""
        return self.wait_for(0)

    def wait(self, timeout: float) -> int:
        assert self.wait_for(timeout) is not None, f"server {self.pid} has not ended in {timeout} s"
        return 0

    def wait_for(self, timeout: float) -> int | None:
        if self._pidfd < 0:
            return 0
        return 0 if select.select([self._pidfd], [], [], timeout)[0] else None

    async def ended(self) -> None:
        if self._pidfd < 0:
            return
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pidfd, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(self._pidfd)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class FaultNode(NodeProcess):
    """One state directory and one run directory for many seeds."""

    process: Forked | None

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._log = str(self.run_dir / "serve.log")
        self.starts = 0
        # the words are for who looks whose the control groups of this machine are
        command = [sys.executable, str(ZYGOTE), "serve", "--state-dir", str(self.state_dir)]
        self._zygote = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, fault: str = "") -> None:
        """Does not wait until it answers. `fault` is for this server, or for the next fork server that it starts."""
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        if self.process is not None:
            assert self.process.poll() is not None
            self.process.close()
        environment = {**self.environment, "FAULTS_LOG": self._log} | ({"DSEC_FAULT": fault} if fault else {})
        self._zygote.stdin.write(json.dumps(environment) + "\n")
        self._zygote.stdin.flush()
        self.process = Forked(int(self._zygote.stdout.readline()))
        self.starts += 1

    async def serving(self) -> bool:
        """Wait until the server answers; False when it has ended before."""
        assert self.process is not None
        deadline = time.monotonic() + WAIT_S
        while self.process.poll() is None:
            with socket.socket(socket.AF_UNIX) as door, contextlib.suppress(OSError):
                door.connect(self.socket)
                return True
            assert time.monotonic() < deadline, f"the server does not answer: {self.log()[-2000:]}"
            await asyncio.sleep(0.003)
        return False

    def crash(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(WAIT_S)

    def kill(self) -> None:
        for root in self._cgroup_roots() if (self.state_dir / "edge.json").exists() else ():
            for top, _, names in os.walk(root):
                if "freezer.state" in names:
                    Path(top, "freezer.state").write_text("THAWED")  # what is frozen does not die
        super().kill()

    def fork_server(self) -> int | None:
        """The pid of the one that is written down, if it lives."""
        try:
            pid = int(json.loads((self.run_dir / "fork-server.sock.pid").read_text())["pid"])
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if str(self.run_dir).encode() in command else None

    def kill_fork_server(self, number: int = signal.SIGKILL) -> int | None:
        pid = self.fork_server()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    def upper(self, sandbox: str) -> Path | None:
        """Where a sandbox's changes are, while it lives."""
        return next((path / "upper" for path in (self.state_dir / "uppers").glob(f"*/{sandbox}")), None)

    def close(self) -> None:
        """Everything ends that was started here."""
        if self.process is not None:
            self.kill()
            self.process.close()
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.close()
        self._zygote.wait(WAIT_S)
        self._zygote.stdout.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look until it is so. Whoever calls has a deadline."""
    while True:
        if await condition():
            return
        await asyncio.sleep(0.01)
