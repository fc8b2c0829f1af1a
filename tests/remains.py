"""What a test run must not leave behind on the machine.

What others do there meanwhile does not count. A mount, a loop device, a file or a process is ours by a path of this run
in its name, or by the environment that this run gave it. A control group is ours when it was not there before, unless
the server whose edge it names was seen to run and is not ours: such a server may be of another container, of which
nothing is seen but the name that it holds, and it may end without giving back what it has.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

TOKEN = "DSEC_TEST_RUN"
"""In the environment of every process that a test starts: the pid of its run."""

BUILD = Path(__file__).resolve().parent.parent / "build"
STATE_PREFIX = f"node-{os.getpid()}-"
"""Of directories in build/."""
DISK_PREFIX = f"dsec-test-{os.getpid()}-"
"""Of directories in /var/tmp, which lies on a disk where /tmp may not."""

_WAIT_S = 20.0
"""For what is given back in the background."""


FORK_SERVERS_NETWORKS = 5
"""The network namespaces it holds when it is at rest: its own, and four made ahead."""


def descriptors(pid: int) -> list[str]:
    """What a process has open."""
    held = []
    for link in glob.glob(f"/proc/{pid}/fd/*"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            held.append(os.readlink(link))
    return held


def fork_servers_descriptors(pid: int) -> int:
    """How many a fork server has open once it makes no namespace ahead, without those it holds."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        held = descriptors(pid)
        networks = sum(target.startswith("net:[") for target in held)
        if networks == FORK_SERVERS_NETWORKS:
            return len(held) - networks
        assert networks < FORK_SERVERS_NETWORKS
        assert time.monotonic() < deadline, f"the fork server holds {networks} network namespaces"
        time.sleep(0.005)


class Remains:
    """Made before the first test."""

    def __init__(self, temporary: Path) -> None:
        """`temporary`: where the run's own temporary directories are."""
        os.environ[TOKEN] = str(os.getpid())
        self._ours = (f"{temporary}/", f"{BUILD}/{STATE_PREFIX}", f"/var/tmp/{DISK_PREFIX}")
        self._groups = set(_groups())
        self._others: set[str] = set()
        """Names of groups of servers that this run did not start."""
        self._networks = set(glob.glob("/run/netns/*"))

    def look(self) -> None:
        """See whose groups there are, while their servers run. For after each test."""
        new = {os.path.basename(path) for path in set(_groups()) - self._groups} - self._others
        if new and (held := new & set(_groups_of_servers())):
            ours = set(_groups_of(self._processes()))
            # one of ours that has ended in between is not taken for another's
            self._others |= (held - ours) & set(_groups_of_servers())

    def left(self) -> list[str]:
        """What is there all the while and should not be: others' groups may come and go."""
        deadline = time.monotonic() + _WAIT_S
        found = set(self._now())
        while found and time.monotonic() < deadline:
            time.sleep(0.1)
            found &= set(self._now())
        return sorted(found)

    def _now(self) -> Iterator[str]:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if self._names_ours(line):
                yield f"mount: {line}"
        for backing in glob.glob("/sys/block/loop*/loop/backing_file"):
            if self._names_ours(path := _read(backing).decode(errors="replace").strip()):
                yield f"loop device over {path}"
        yield from (f"directory {path}" for prefix in self._ours[1:] for path in glob.glob(f"{prefix}*"))
        yield from (f"network namespace {path}" for path in {*glob.glob("/run/netns/*")} - self._networks)
        yield from (f"process {pid}: {_command(pid)[:200]}" for pid in self._processes())
        self.look()
        groups = set(_groups()) - self._groups
        yield from (f"control group {path}" for path in groups if os.path.basename(path) not in self._others)

    def _processes(self) -> Iterator[int]:
        mark = f"{TOKEN}={os.getpid()}".encode()
        for pid in _pids():
            command = _command(pid)
            if pid == os.getpid() or not command:
                continue
            if self._names_ours(command) or mark in _read(f"/proc/{pid}/environ").split(b"\0"):
                yield pid

    def _names_ours(self, text: str) -> bool:
        return any(path in text for path in self._ours)


def _groups() -> list[str]:
    """Directories of nodes, probes, benches and this run's tests in every hierarchy."""
    names = ("dsec-*", f"aether-test-{os.getpid()}-*")
    return [path for name in names for top in ("", "*/") for path in glob.glob(f"/sys/fs/cgroup/{top}{name}")]


def _groups_of_servers() -> Iterator[str]:
    """Names of the groups of every server that runs, whoever started it: it holds its edge's name as a socket's."""
    for line in _read("/proc/net/unix").decode(errors="replace").splitlines():
        _, held, prefix = line.partition(" @dsec-edge-")
        if held:
            yield f"dsec-{prefix}"


def _groups_of(processes: Iterable[int]) -> Iterator[str]:
    """Names of the groups of those processes that are servers."""
    for pid in processes:
        words = _read(f"/proc/{pid}/cmdline").split(b"\0")
        variables = dict(word.partition(b"=")[::2] for word in _read(f"/proc/{pid}/environ").split(b"\0"))
        state = variables.get(b"DSEC_STATE_DIR", b"/var/lib/dsec")
        if b"--state-dir" in words:
            state = words[words.index(b"--state-dir") + 1]
        if identity := _read(os.path.join(state, b"edge.json")):
            yield f"dsec-{json.loads(identity)['edge_prefix']}"


def _command(pid: int) -> str:
    return _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _read(path: str | bytes) -> bytes:
    """Nothing of what has gone meanwhile, or is not ours to see."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
