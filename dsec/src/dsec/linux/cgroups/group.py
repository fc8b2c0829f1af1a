"""One sandbox's directories: setting limits, reading what is used, seeing whether they are empty."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Literal

from libdsec.protocol.errors import DeadlineExceededError, InvalidArgumentError, UnsupportedOperationError

from ..syscalls import KernelError, from_os_error
from . import files, freezer
from .hierarchies import Controller, Hierarchies

CPU_PERIOD_US = 100_000
_MIN_QUOTA_US = 1_000
_PAGE = 4096
_MOST_PIDS = 4_194_304
FREEZE_POLL_S = 0.001
"""Between two looks at whether a group is frozen."""
_LEAF_DEPTH = 8
"""Levels below a sandbox's directory that are looked at: PID 1 makes one, the rest is slack."""


@dataclass(frozen=True)
class CgroupLimits:
    """None is no limit. Bytes, cores' worth of time, number of processes and threads.

    :raises InvalidArgumentError: a limit that no kernel takes.
    """

    memory_bytes: int | None = None
    cpu_cores: float | None = None
    pids: int | None = None

    def __post_init__(self) -> None:
        for field_name, value, least, most in (
            ("memory_bytes", self.memory_bytes, _PAGE, 1 << 60),
            ("cpu_cores", self.cpu_cores, 0.01, 4096),
            ("pids", self.pids, 1, _MOST_PIDS),
        ):
            if value is not None and not least <= value <= most:
                raise InvalidArgumentError(
                    f"cannot limit {field_name} to {value}: it must be from {least} to {most}", field=field_name
                )


UNLIMITED = CgroupLimits()


@dataclass
class Cgroup:
    """Directories of one sandbox, the same name in each hierarchy."""

    name: str
    places: tuple[tuple[str, Literal[1, 2], tuple[Controller, ...]], ...]
    """(directory, version, controllers) a hierarchy."""
    limits: CgroupLimits | None = UNLIMITED
    """As they were set; None when an earlier process set them."""
    _base: dict[str, int] = field(default_factory=dict)
    """Counters that cannot be reset, as they were when the group was taken."""
    _may_be_frozen: bool = False
    """So that giving back one that nobody froze costs no write."""

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.places]

    @property
    def memory(self) -> str | None:
        return self._place("memory")[0]

    @property
    def pids(self) -> str | None:
        return self._place("pids")[0]

    @property
    def version(self) -> Literal[1, 2]:
        """Of the memory controller's hierarchy (of the first one when there is no memory controller)."""
        return self._place("memory")[1]

    def memory_usage(self) -> int:
        """Bytes charged now, page cache included; 0 without the controller."""
        path, version = self._place("memory")
        return (
            0 if path is None else files.read_int(path, "memory.usage_in_bytes" if version == 1 else "memory.current")
        )

    def pids_current(self) -> int:
        """Processes and threads now, those in leaves included; 0 without the controller."""
        path, _ = self._place("pids")
        return 0 if path is None else files.read_int(path, "pids.current")

    def oom_kills(self) -> int:
        """Processes killed for memory since the group was taken: in its leaves on v2, in its own directory on v1."""
        return self._oom_total() - self._base.get("oom_kill", 0)

    def pids_refused(self) -> int:
        """Forks refused for the pids limit since the group was taken."""
        return self._pids_total() - self._base.get("pids_max", 0)

    def apply(self, limits: CgroupLimits) -> None:
        """Set limits, writing only what differs.

        :raises KernelError: the kernel refused; what is set then is not known, the group must not be used.
        """
        old = self.limits
        path, version = self._place("memory")
        if path is not None and (old is None or limits.memory_bytes != old.memory_bytes):
            _write_memory(path, version, limits.memory_bytes, old)
        path, version = self._place("cpu")
        if path is not None and (old is None or limits.cpu_cores != old.cpu_cores):
            _write_cpu(path, version, limits.cpu_cores)
        path, _ = self._place("pids")
        if path is not None and (old is None or limits.pids != old.pids):
            files.write(path, "pids.max", "max" if limits.pids is None else str(limits.pids))
        self.limits = limits

    def reset(self) -> None:
        """Counters back to nothing, where the kernel lets them be reset; the others are remembered."""
        path, version = self._place("memory")
        if path is not None and version == 1:
            for name in ("memory.max_usage_in_bytes", "memory.failcnt"):
                files.write(path, name, "0")
        self.note_counters()

    def note_counters(self) -> None:
        """Count kills and refusals from here."""
        self._base = {"oom_kill": self._oom_total(), "pids_max": self._pids_total()}

    def try_freeze(self) -> bool:
        """Ask for every process to be stopped where it stands; whether all are. Call it again until they are, and
        `thaw` if they do not become so.

        :raises UnsupportedOperationError: this host has no freezer.
        """
        path, version = self._freezer()
        self._may_be_frozen = True
        freezer.freeze(path, version)
        return freezer.is_frozen(path, version)

    def freeze(self, deadline_s: float) -> None:
        """Stop every process where it stands, and wait until all are. On failure all go on.

        :raises UnsupportedOperationError: this host has no freezer.
        :raises DeadlineExceededError: one of them could not be stopped in time.
        """
        end = time.monotonic() + deadline_s
        try:
            while not self.try_freeze():
                if time.monotonic() > end:
                    raise DeadlineExceededError(
                        f"cannot freeze {self.name}: a process of it could not be stopped in {deadline_s:g} s",
                        stage="freeze",
                        timeout_s=deadline_s,
                    )
                time.sleep(FREEZE_POLL_S)
        except BaseException:
            self.thaw()
            raise

    def thaw(self) -> None:
        """Let every process go on; nothing happens when none was stopped or the host has no freezer."""
        path, version = self._place("freezer")
        if path is not None:
            freezer.thaw(path, version)
        self._may_be_frozen = False

    def frozen(self) -> bool:
        """Whether every process of it is stopped now."""
        path, version = self._place("freezer")
        return path is not None and freezer.is_frozen(path, version)

    def freezable_in_a_read(self) -> list[int]:
        """Threads of it of which one that waits to be told that bytes which it reads are there (`is_in_a_read`) must
        not be left frozen: it would keep pages from others (`freezer`)."""
        path, version = self._freezer()
        return freezer.freezable_in_a_read([*_leaves(path), path], version)

    def thaw_if_frozen(self) -> None:
        """As `thaw`, without a write where nobody has frozen it."""
        if self._may_be_frozen:
            self.thaw()

    def note_freezer(self) -> None:
        """Learn what an earlier process did; what is frozen stays so."""
        path, version = self._place("freezer")
        self._may_be_frozen = path is not None and not freezer.is_thawed(path, version)

    def processes(self) -> set[int]:
        """Pids in the group and its leaves. Empty when its directories are gone."""
        found: set[int] = set()
        for path in self.paths:
            for directory in [*_leaves(path), path]:
                found.update(files.pids(directory))
        return found

    def kill(self) -> None:
        """SIGKILL to all in it, frozen or not. Only for what a crash left: otherwise all has ended with PID 1."""
        for path, version, _ in self.places:
            if version == 2 and os.path.exists(f"{path}/cgroup.kill"):
                files.write(path, "cgroup.kill", "1")
        for pid in self.processes():
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(pid)
                try:
                    # the pid may have been given to another process before it was pinned by the descriptor
                    if pid in self.processes():
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)
        # afterwards, so that what was frozen runs no more: on v1 it ends by being thawed
        try:
            self.thaw()
        except KernelError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    def vacate(self, keep: frozenset[str] = frozenset()) -> bool:
        """Remove the leaves; False when processes are left anywhere in the group.

        `keep` names leaves that stay on v1, empty: removed, each would linger in the kernel as long as a page that its
        commands read is charged to it. On v2 all must go, since an idle directory hands no controller down.
        """
        for path, version, _ in self.places:
            for leaf in _leaves(path):
                if version == 1 and os.path.dirname(leaf) == path and os.path.basename(leaf) in keep:
                    if files.pids(leaf):
                        return False
                elif not _rmdir(leaf):
                    return False
            if files.pids(path):
                return False
            if version == 2 and (handed := _handed_down(path)):
                files.write(path, "cgroup.subtree_control", " ".join(f"-{name}" for name in handed))
        return True

    def remove(self) -> bool:
        """Remove the directories; False when processes keep one of them."""
        if not self.vacate():
            return False
        return all(_rmdir(path) for path in self.paths)

    def _freezer(self) -> tuple[str, Literal[1, 2]]:
        path, version = self._place("freezer")
        if path is None:
            raise UnsupportedOperationError(
                f"cannot freeze {self.name}: this host has neither the v1 freezer hierarchy nor cgroup v2; mount one "
                "below /sys/fs/cgroup",
                controller="freezer",
            )
        return path, version

    def _place(self, controller: Controller) -> tuple[str | None, Literal[1, 2]]:
        for path, version, controllers in self.places:
            if controller in controllers:
                return path, version
        return None, self.places[0][1] if self.places else 2

    def _oom_total(self) -> int:
        path, version = self._place("memory")
        if path is None:
            return 0
        return files.read_field(path, "memory.oom_control" if version == 1 else "memory.events", "oom_kill")

    def _pids_total(self) -> int:
        path, _ = self._place("pids")
        return 0 if path is None else files.read_field(path, "pids.events", "max")


def make_cgroup(hierarchies: Hierarchies, root_name: str, name: str) -> Cgroup:
    """A group of the tree, its directories made where they are missing.

    :raises KernelError: one could not be made; those made before it are removed.
    """
    group = cgroup_at(hierarchies, root_name, name)
    made: list[str] = []
    for path in group.paths:
        try:
            os.mkdir(path, 0o755)
            made.append(path)
        except FileExistsError:
            continue
        except OSError as error:
            for earlier in made:
                _rmdir(earlier)
            raise from_os_error(error, "make cgroup", path) from None
    return group


def cgroup_at(hierarchies: Hierarchies, root_name: str, name: str) -> Cgroup:
    """The group of that name, whether its directories exist or not."""
    return Cgroup(name, tuple((f"{h.path}/{root_name}/{name}", h.version, h.controllers) for h in hierarchies.all))


def _write_memory(path: str, version: int, limit: int | None, old: CgroupLimits | None) -> None:
    """On v2 swap has a bound of its own: none is given, which keeps the limit exact (pausing raises it for its own
    ends). On v1 the second file bounds memory and swap together and may never be below the first, so it is lifted
    before the first one rises. Either is missing where the kernel does not account swap."""
    if version == 2:
        files.write(path, "memory.max", "max" if limit is None else str(limit))
        files.write_if_there(path, "memory.swap.max", "max" if limit is None else "0")
        return
    before = old.memory_bytes if old is not None else 0
    if before is not None and (limit is None or limit > before):
        files.write_if_there(path, "memory.memsw.limit_in_bytes", "-1")
    files.write(path, "memory.limit_in_bytes", str(-1 if limit is None else limit))
    if limit is not None:
        files.write_if_there(path, "memory.memsw.limit_in_bytes", str(limit))


def _write_cpu(path: str, version: int, cores: float | None) -> None:
    quota = None if cores is None else max(_MIN_QUOTA_US, round(cores * CPU_PERIOD_US))
    if version == 2:
        files.write(path, "cpu.max", f"{'max' if quota is None else quota} {CPU_PERIOD_US}")
    else:
        files.write(path, "cpu.cfs_quota_us", str(-1 if quota is None else quota))


def _handed_down(path: str) -> list[str]:
    """Controllers that a v2 directory gives to its children."""
    try:
        return files.read(path, "cgroup.subtree_control").split()
    except KernelError as error:
        if error.errno == errno.ENOENT:
            return []
        raise


def _leaves(path: str, depth: int = _LEAF_DEPTH) -> list[str]:
    """Directories below, the deepest first."""
    try:
        # the link count of a cgroup directory counts its children: much cheaper than reading its two dozen files
        if depth == 0 or os.stat(path).st_nlink == 2:
            return []
        with os.scandir(path) as entries:
            children = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    found: list[str] = []
    for child in children:
        found += [*_leaves(child, depth - 1), child]
    return found


def _rmdir(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
            return False
        raise from_os_error(error, "remove cgroup", path) from None
    return True
