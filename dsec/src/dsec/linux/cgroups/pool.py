"""Re-used directories, one tree a node."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection

from libdsec.protocol.errors import UnsupportedOperationError

from ..syscalls import KernelError, from_os_error
from .group import UNLIMITED, Cgroup, CgroupLimits, cgroup_at, make_cgroup
from .hierarchies import Controller, Hierarchies, Hierarchy

_NAME = re.compile(r"s(\d+)")
_LOOKED_AT_A_CALL = 4
"""Set-aside groups that one `acquire` or `release` looks at again; keeps a call's cost bounded."""
_ONLY_THIS_GROUP = (errno.EBUSY, errno.ENOENT, errno.ENODEV)
"""Pages of the last user above the new limit, or directories that somebody removed: another group will do."""
KEPT_LEAVES = frozenset(f"c{number}" for number in range(4))
"""Leaves that stay for the next sandbox's commands (v1): as many as most sandboxes ever run at once."""
MAX_IDLE = 256
"""Directories kept for re-use; more are removed when they come back."""


class CgroupPool:
    """All groups below one name. Calls are safe from several threads; none waits for a process."""

    def __init__(self, root_name: str, hierarchies: Hierarchies, max_idle: int = MAX_IDLE) -> None:
        self._root_name = root_name
        self._hierarchies = hierarchies
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._idle: list[Cgroup] = []
        self._used: dict[str, Cgroup] = {}
        self._busy: deque[Cgroup] = deque()
        self._next = 0
        self._rooted = False

    def acquire(self, limits: CgroupLimits) -> Cgroup:
        """A group with these limits, empty and with its counters at nothing.

        :raises UnsupportedOperationError: a limit whose controller this host does not have.
        :raises KernelError: the kernel refused; nothing is taken.
        """
        self._check(limits)
        with self._lock:
            self._look_again()
            while self._idle:
                group = self._idle.pop()
                try:
                    group.apply(limits)
                except KernelError as error:
                    self._set_aside(group)
                    if error.errno not in _ONLY_THIS_GROUP:
                        raise
                    continue
                self._used[group.name] = group
                return group
            return self._make(limits)

    def release(self, group: Cgroup) -> bool:
        """Give a group back once its processes have ended. False when some are left: it is then set aside, and
        becomes usable again when later calls find it empty. Giving back twice is not an error."""
        with self._lock:
            self._look_again()
            if self._used.pop(group.name, None) is None:
                return True
            return self._recycle(group)

    def adopt(self, name: str) -> Cgroup:
        """Take over the group of a sandbox that an earlier process made and that still runs.

        Its limits are not read back; the counters count from here. If it is frozen it stays so.
        :raises KernelError: it is not there (ENOENT).
        """
        with self._lock:
            group = self._used.get(name) or self._known(name)
            self._used[name] = group
            return group

    def sweep(self) -> int:
        """Remove what an earlier process left: groups that nobody adopted, with what still runs in them. Returns how
        many were found. Call it once, after every `adopt`."""
        with self._lock:
            known = set(self._used) | {g.name for g in self._idle} | {g.name for g in self._busy}
            left = self._names_on_disk() - known
            for name in sorted(left, key=lambda n: int(n[1:])):
                group = cgroup_at(self._hierarchies, self._root_name, name)
                group.kill()
                self._discard(group)
            if left:
                self._next = max([self._next, *(int(n[1:]) + 1 for n in left)])
            return len(left)

    def prefill(self, count: int) -> None:
        """Have that many idle groups, so that the first acquires are as fast as the later ones."""
        with self._lock:
            while len(self._idle) < min(count, self._max_idle):
                group = self._make(UNLIMITED)
                del self._used[group.name]
                self._idle.append(group)

    def set_aside(self) -> int:
        """Groups that wait for their processes to go."""
        with self._lock:
            self._look_again()
            return len(self._busy)

    def close(self, timeout_s: float = 2.0, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Remove every directory of the tree, killing what runs in those given back. Groups in use stay, since their
        sandboxes outlive us. False when something is left after the time."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            left = [*self._idle, *self._busy]
            self._idle, self._busy = [], deque()
            while True:
                for group in left:
                    group.kill()
                left = [group for group in left if not group.remove()]
                if not left or time.monotonic() > deadline:
                    break
                sleep(0.01)
            self._busy.extend(left)
            return not left and not self._used and self._remove_roots()

    def _make(self, limits: CgroupLimits) -> Cgroup:
        self._make_roots()
        group = make_cgroup(self._hierarchies, self._root_name, f"s{self._next}")
        self._next += 1
        try:
            group.apply(limits)
        except KernelError:
            group.remove()
            raise
        self._used[group.name] = group
        return group

    def _recycle(self, group: Cgroup) -> bool:
        try:
            group.thaw_if_frozen()
            if not group.vacate(KEPT_LEAVES):
                self._set_aside(group)
                return False
            if len(self._idle) >= self._max_idle:
                return group.remove() or self._set_aside(group)
            group.reset()
        except KernelError:
            return self._set_aside(group)
        self._idle.append(group)
        return True

    def _set_aside(self, group: Cgroup) -> bool:
        self._busy.append(group)
        return False

    def _look_again(self) -> None:
        for _ in range(min(_LOOKED_AT_A_CALL, len(self._busy))):
            self._discard(self._busy.popleft())

    def _discard(self, group: Cgroup) -> None:
        """A group that was not given back in the ordinary way is removed, not used again: its state is in doubt."""
        try:
            gone = group.remove()
        except KernelError:
            gone = False
        if not gone:
            self._busy.append(group)

    def _known(self, name: str) -> Cgroup:
        group = cgroup_at(self._hierarchies, self._root_name, name)
        for path in group.paths:
            if not os.path.isdir(path):
                raise KernelError(errno.ENOENT, "adopt cgroup", path)
        if match := _NAME.fullmatch(name):
            self._next = max(self._next, int(match[1]) + 1)
        group.limits = None
        group.note_counters()
        group.note_freezer()
        return group

    def _names_on_disk(self) -> set[str]:
        names: set[str] = set()
        for hierarchy in self._hierarchies.all:
            try:
                names.update(n for n in os.listdir(self._root(hierarchy)) if _NAME.fullmatch(n))
            except FileNotFoundError:
                continue
        return names

    def _check(self, limits: CgroupLimits) -> None:
        asked: Collection[tuple[Controller, object]] = (
            ("memory", limits.memory_bytes),
            ("cpu", limits.cpu_cores),
            ("pids", limits.pids),
        )
        for controller, value in asked:
            if value is not None:
                self._hierarchies.require(controller)

    def _root(self, hierarchy: Hierarchy) -> str:
        return f"{hierarchy.path}/{self._root_name}"

    def _make_roots(self) -> None:
        if self._rooted:
            return
        for hierarchy in self._hierarchies.all:
            root = self._root(hierarchy)
            try:
                os.makedirs(root, 0o755, exist_ok=True)
                if hierarchy.version == 2:
                    self._hand_down(hierarchy)
            except OSError as error:
                raise from_os_error(error, "make cgroup", root) from None
        self._next = max([self._next, *(int(n[1:]) + 1 for n in self._names_on_disk())])
        self._rooted = True

    def _hand_down(self, hierarchy: Hierarchy) -> None:
        """v2: a directory's children have only the controllers that it hands down."""
        wanted = " ".join(f"+{controller}" for controller in hierarchy.handed_down)
        if not wanted:
            return
        for directory in (hierarchy.path, self._root(hierarchy)):
            path = f"{directory}/cgroup.subtree_control"
            try:
                with open(path, "w", encoding="ascii") as file:
                    file.write(wanted)
            except OSError as error:
                raise UnsupportedOperationError(
                    f"cannot hand cgroup controllers down in {directory}: {error.strerror}; the group must hold no "
                    "processes of its own (in a container, move them into a child group first)",
                    path=path,
                ) from error

    def _remove_roots(self) -> bool:
        for hierarchy in self._hierarchies.all:
            try:
                os.rmdir(self._root(hierarchy))
            except FileNotFoundError:
                continue
            except OSError:
                return False
        self._rooted = False
        return True
