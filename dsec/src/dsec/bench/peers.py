"""The peers: other runtimes, each asked for the same thing as we.

Same bytes: all of them run from the mount of the very layers that our sandboxes stand on. Same namespaces: pid, mount,
network (with nothing but loopback), ipc and uts; no terminal. What they do less than ours, to their gain: crun, runc
and bwrap run from the read-only tree with no writable upper.

- `crun`, `runc`: the bundle that their own `spec` writes, with the root file system and the command replaced; one
  process of theirs for each run or exec; state in the scratch directory; cgroups as they make them by default. crun
  refuses to make any where both cgroup versions have controllers; there it is shown a machine without version 2.
- `bwrap`: `--unshare-pid --unshare-net --unshare-ipc --unshare-uts`, /proc and /dev; it knows no exec.
- `docker`: an imported image of the same tree, `run --rm --network none`; only if a daemon answers.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from libdsec.protocol.errors import DSecError, InternalError

from .native import output_of

NAMES = ("crun", "runc", "bwrap", "docker")
WITH_EXEC = ("crun", "runc", "docker")

_IDLE = ("sleep", "infinity")

_HIDE_CGROUP2 = "umount /sys/fs/cgroup/unified && mount -t tmpfs none /sys/fs/cgroup/unified"
"""With a file system of its own for the directories that crun makes there all the same, and leaves."""
_WITHOUT_CGROUP2 = ("unshare", "-m", "/bin/sh", "-c", f'{_HIDE_CGROUP2} && exec "$@"', "sh")


class Peer(Protocol):
    """A runtime that is installed. `@ID@` in a command line becomes a name of its own for each turn."""

    share: float
    """Of the samples that fast contestants take."""
    wrap: tuple[str, ...]
    """Around the stop-watch (never around a turn): how to get where this runtime can work; mostly empty."""

    def run(self, argv: Sequence[str]) -> list[str]:
        """A whole life: start, this command's output, gone."""
        ...

    async def prepare(self) -> None:
        """Once, before anything else."""
        ...

    async def close(self) -> None:
        """Take away whatever of it is left, in any state, prepared or not. Again is fine."""
        ...


class PeerWithExec(Peer, Protocol):
    """A runtime that can run a further command in what it started."""

    async def keep(self) -> None:
        """Start one that stays."""
        ...

    def exec(self, argv: Sequence[str]) -> list[str]:
        """In the one that was kept."""
        ...


class Runtime:
    """crun and runc, whose command lines are the same."""

    def __init__(self, program: str, directory: Path, lower: Path) -> None:
        self._program, self._directory, self._lower = program, directory, lower
        self._bundles: dict[tuple[str, ...], Path] = {}
        self._template: dict[str, object] = {}
        self.share = 0.5
        self.wrap: tuple[str, ...] = ()

    async def prepare(self) -> None:
        """Ask it for its own idea of a container, and see it work once.

        :raises InternalError: it is installed and cannot run here; its own words are in the message.
        """
        where = self._directory / "template"
        where.mkdir(parents=True)
        self._state.mkdir()
        await output_of([self._program, "spec", "--bundle", str(where)], 30)
        self._template = json.loads((where / "config.json").read_text())
        first = [*self._command(), "run", "--bundle", str(self._bundle(("/bin/true",))), f"{self._kept}-first"]
        try:
            await output_of(first, 30)
        except InternalError as error:
            if "hybrid" not in error.message:
                raise
            self.wrap = _WITHOUT_CGROUP2
            await output_of([*self.wrap, *first], 30)

    def run(self, argv: Sequence[str]) -> list[str]:
        return [*self._command(), "run", "--bundle", str(self._bundle(argv)), "@ID@"]

    async def keep(self) -> None:
        bundle = str(self._bundle(_IDLE))
        # what it starts would hold a pipe of ours open for good
        script = '"$@" >/dev/null 2>&1 </dev/null'
        command = [*self._command(), "run", "--detach", "--bundle", bundle, self._kept]
        await output_of([*self.wrap, "/bin/sh", "-c", script, "sh", *command], 30)

    def exec(self, argv: Sequence[str]) -> list[str]:
        return [*self._command(), "exec", self._kept, *argv]

    async def close(self) -> None:
        if not self._state.is_dir():
            return
        for name in (await output_of([*self._command(), "list", "--quiet"], 30)).split():
            await output_of([*self.wrap, *self._command(), "delete", "--force", name], 30)

    @property
    def _kept(self) -> str:
        return f"{self._directory.parent.name}-kept"

    @property
    def _state(self) -> Path:
        return self._directory / "state"

    def _command(self) -> list[str]:
        return [self._program, "--root", str(self._state)]

    def _bundle(self, argv: Sequence[str]) -> Path:
        key = tuple(argv)
        if key not in self._bundles:
            config = json.loads(json.dumps(self._template))
            config["process"]["args"] = list(argv)
            config["process"]["terminal"] = False
            config["root"] = {"path": str(self._lower), "readonly": True}
            bundle = self._directory / f"bundle-{len(self._bundles)}"
            bundle.mkdir()
            (bundle / "config.json").write_text(json.dumps(config))
            self._bundles[key] = bundle
        return self._bundles[key]


class Bwrap:
    def __init__(self, program: str, lower: Path) -> None:
        self._program, self._lower = program, lower
        self.share = 1.0
        self.wrap: tuple[str, ...] = ()

    def run(self, argv: Sequence[str]) -> list[str]:
        unshare = ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")
        tree = ("--ro-bind", str(self._lower), "/", "--proc", "/proc", "--dev", "/dev")
        return [self._program, *unshare, *tree, *argv]

    async def prepare(self) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        """Nothing outlives its process."""


class Docker:
    def __init__(self, program: str, name: str, lower: Path) -> None:
        self._program, self._name, self._lower = program, name, lower
        self.share = 0.1
        self.wrap: tuple[str, ...] = ()

    async def prepare(self) -> None:
        script = 'tar --one-file-system -C "$1" -c . | "$2" import - "$3"'
        await output_of(["/bin/sh", "-c", script, "sh", str(self._lower), self._program, self._name], 600)

    def run(self, argv: Sequence[str]) -> list[str]:
        return [*self._start("@ID@"), "--rm", self._name, *argv]

    async def keep(self) -> None:
        await output_of([*self._start(f"{self._name}-kept"), "--detach", self._name, *_IDLE], 60)

    def exec(self, argv: Sequence[str]) -> list[str]:
        return [self._program, "exec", f"{self._name}-kept", *argv]

    async def close(self) -> None:
        left = (await output_of([self._program, "ps", "-aq", "--filter", f"label={self._name}"], 60)).split()
        if left:
            await output_of([self._program, "rm", "--force", *left], 300)
        if (await output_of([self._program, "images", "-q", self._name], 60)).split():
            await output_of([self._program, "rmi", "--force", self._name], 300)

    def _start(self, name: str) -> list[str]:
        return [self._program, "run", "--name", name, "--label", self._name, "--network", "none"]


async def docker_answers() -> bool:
    """Whether there is a docker with a daemon, this machine's or the one that DOCKER_HOST names."""
    program = shutil.which("docker")
    return program is not None and await _answers(program)


async def _answers(program: str) -> bool:
    try:
        await output_of([program, "version", "--format", "{{.Server.Version}}"], 10)
    except DSecError:
        return False
    return True


async def _found(name: str, directory: Path, lower: Path) -> Peer | None:
    program = shutil.which(name)
    if program is None:
        return None
    if name == "bwrap":
        return Bwrap(program, lower)
    if name == "docker":
        return Docker(program, directory.name.lower(), lower) if await _answers(program) else None
    return Runtime(program, directory / name, lower)


@contextlib.asynccontextmanager
async def peers(names: Sequence[str], directory: Path, lower: Path) -> AsyncIterator[dict[str, Peer | None]]:
    """Those of `names` that are installed, ready; None for the others. Gone with all they made at the end."""
    async with contextlib.AsyncExitStack() as stack:
        found: dict[str, Peer | None] = {}
        for name in names:
            peer = found[name] = await _found(name, directory, lower)
            if peer is not None:
                stack.push_async_callback(peer.close)
                await peer.prepare()
        yield found


@contextlib.asynccontextmanager
async def peers_with_exec(directory: Path, lower: Path) -> AsyncIterator[dict[str, PeerWithExec | None]]:
    """As `peers`, of those that know exec, each with one that is kept."""
    async with peers(WITH_EXEC, directory, lower) as found:
        kept: dict[str, PeerWithExec | None] = dict.fromkeys(WITH_EXEC)
        for name, peer in found.items():
            if isinstance(peer, Runtime | Docker):
                await peer.keep()
                kept[name] = peer
        yield kept
