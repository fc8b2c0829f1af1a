"""A server process, and everything of it that can be seen from outside."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from remains import descriptors, fork_servers_descriptors

WAIT_S = 30.0


class NodeProcess:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state_dir = directory / "state"
        self.run_dir = directory / "run"
        self.run_dir.mkdir()
        self.socket = str(self.run_dir / "api.sock")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DSEC_STATE_DIR": str(self.state_dir),
            "DSEC_RUN_DIR": str(self.run_dir),
            "DSEC_FORK_SERVER_TIMEOUT_S": "2",
        }

    def start(self) -> None:
        with open(self.run_dir / "serve.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dsec", "serve"], env=self.environment, stdout=log, stderr=log
            )
        self.wait(lambda: os.path.exists(self.socket) or self._has_ended())
        assert os.path.exists(self.socket), self.log()

    def end(self) -> None:
        """SIGTERM, and wait."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(WAIT_S) == 0, self.log()

    def crash(self) -> None:
        """SIGKILL the server; its fork server lives on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(WAIT_S)
        os.unlink(self.socket)

    def kill(self) -> None:
        """Whatever state a failed test left: nothing may run on."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)
        started = (self.state_dir / "edge.json").exists()
        for pid in [*self.fork_servers(), *(self.inits() if started else ())]:
            os.kill(pid, signal.SIGKILL)
        if not started:
            return
        for root in self._cgroup_roots():
            for path in [top for top, _, _ in os.walk(root)][::-1]:
                self.wait(lambda path=path: _rmdir(path))

    def log(self) -> str:
        names = ("serve.log", "fork-server.log")
        return "\n".join((self.run_dir / name).read_text() for name in names if (self.run_dir / name).exists())

    @staticmethod
    def wait(condition: object) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():  # type: ignore[operator]
            assert time.monotonic() < deadline, "it did not come true in time"
            time.sleep(0.01)

    @property
    def prefix(self) -> str:
        return str(json.loads((self.state_dir / "edge.json").read_text())["edge_prefix"])

    def fork_servers(self) -> list[int]:
        return [pid for pid in self._aethers() if _inner_pid(pid) is None]

    def inits(self) -> list[int]:
        """PID 1 of every sandbox, also of those whose fork server is gone: by its group, since it tells no path."""
        group = f"/dsec-{self.prefix}/".encode()
        return [
            pid
            for pid in _pids()
            if _inner_pid(pid) == 1 and b"aether" in _read(pid, "cmdline") and group in _read(pid, "cgroup")
        ]

    def _aethers(self) -> list[int]:
        """What was started as fork server of this run directory, and its forks, which have the same command line."""
        wanted = f"fork-server\0--run-dir\0{self.run_dir}\0".encode()
        return [pid for pid in _pids() if wanted in _read(pid, "cmdline")]

    def descriptors(self) -> dict[str, int]:
        assert self.process is not None
        (fork_server,) = self.fork_servers()
        return {
            # the journal opens more connections to its file when it wants them, a bounded number
            "server": sum("/edge.db" not in target for target in descriptors(self.process.pid)),
            "fork server": fork_servers_descriptors(fork_server),
        }

    def processes(self) -> set[int]:
        """The server's, the fork server's and all below them."""
        assert self.process is not None
        found = {self.process.pid, *self.fork_servers()}
        parents = {pid: _parent(pid) for pid in _pids()}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found

    def namespaces(self) -> dict[str, int]:
        """How many of each kind our processes are in."""
        kinds = ("mnt", "net", "pid", "ipc", "uts", "cgroup", "user")
        found: dict[str, set[str]] = {kind: set() for kind in kinds}
        for pid in self.processes():
            for kind in kinds:
                with contextlib.suppress(OSError):
                    found[kind].add(os.readlink(f"/proc/{pid}/ns/{kind}"))
        return {kind: len(names) for kind, names in found.items()}

    def cgroups(self) -> int:
        """Directories of ours in every hierarchy, those of sandboxes included."""
        return sum(len(dirs) for root in self._cgroup_roots() for _, dirs, _ in os.walk(root))

    def _cgroup_roots(self) -> list[str]:
        name = f"dsec-{self.prefix}"
        tops = ["/sys/fs/cgroup", *(f"/sys/fs/cgroup/{n}" for n in os.listdir("/sys/fs/cgroup"))]
        return [f"{top}/{name}" for top in tops if os.path.isdir(f"{top}/{name}")]

    def seen(self) -> dict[str, object]:
        """Everything of which a sandbox takes something."""
        return {
            "descriptors": self.descriptors(),
            "processes": len(self.processes()),
            "namespaces": self.namespaces(),
            "mounts": len(mounts_naming(str(self.directory))),
            "own cgroups": self.cgroups(),
            "loop devices": loop_devices(self.directory),
            "uppers": self.uppers(),
            "trash": self.trash(),
        }

    def uppers(self) -> list[str]:
        return [str(path.name) for path in (self.state_dir / "uppers").glob("[0-9a-f]*/*")]

    def trash(self) -> list[str]:
        return os.listdir(self.state_dir / "uppers" / ".trash")

    def left_behind(self) -> list[str]:
        """After its end: what is still there and should not be."""
        left = [f"fork server {pid}" for pid in self.fork_servers()]
        left += [f"cgroup {root}" for root in self._cgroup_roots()]
        left += [f"upper {name}" for name in self.uppers()]
        left += [f"mount in {pid}: {line}" for pid, line in mounts_naming(str(self.run_dir))]
        left += [f"socket {self.socket}"] if os.path.exists(self.socket) else []
        return left

    def _has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None


def _rmdir(path: str) -> bool:
    """A group can go once its processes are gone."""
    try:
        os.rmdir(path)
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _inner_pid(pid: int) -> int | None:
    """Its pid in the pid namespace that it made or was born in; None in the host's."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1]) if len(line.split()) > 2 else None
    return None


def _parent(pid: int) -> int:
    stat = _read(pid, "stat")
    return int(stat[stat.rindex(b")") + 2 :].split()[1]) if stat else 0


def mounts_naming(text: str) -> list[tuple[int, str]]:
    """Mounts of any process that mention a path."""
    return [
        (pid, line.decode(errors="replace"))
        for pid in _pids()
        for line in _read(pid, "mountinfo").splitlines()
        if text.encode() in line
    ]


def dying_cgroups() -> dict[str, int]:
    """Groups of v1 controllers that are removed and not gone: /proc/cgroups counts them, no directory shows them."""
    dying: dict[str, int] = {}
    for line in Path("/proc/cgroups").read_text().splitlines()[1:]:
        name, hierarchy, count, _ = line.split()
        top = f"/sys/fs/cgroup/{name}"
        if hierarchy != "0" and os.path.isdir(top):
            dying[name] = int(count) - 1 - sum(len(dirs) for _, dirs, _ in os.walk(top))
    return dying


def loop_devices(directory: Path) -> int:
    """Those on files below a directory: others on the machine have theirs."""
    found = 0
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # let go of since it was listed
            found += path.read_text().startswith(str(directory))
    return found
