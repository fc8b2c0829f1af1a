"""Which controllers this host has, and in which hierarchy each is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from libdsec.protocol.errors import UnsupportedOperationError

from ..syscalls import from_os_error

Controller = Literal["memory", "cpu", "pids", "freezer"]
CONTROLLERS: tuple[Controller, ...] = ("memory", "cpu", "pids", "freezer")


@dataclass(frozen=True)
class Hierarchy:
    """One mounted hierarchy and those of our controllers that it has."""

    path: str
    version: Literal[1, 2]
    controllers: tuple[Controller, ...]

    @property
    def handed_down(self) -> tuple[Controller, ...]:
        """Those that a v2 directory must pass on to its children; freezing is in each of them anyway."""
        return tuple(c for c in self.controllers if c != "freezer")


@dataclass(frozen=True)
class Hierarchies:
    """Those hierarchies that have at least one of our controllers; each controller is in one of them at most."""

    all: tuple[Hierarchy, ...]

    @classmethod
    def detect(cls, mountinfo: str = "/proc/self/mountinfo") -> Hierarchies:
        """Read the mount table. Of several mounts of one hierarchy the first counts."""
        try:
            with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
                lines = file.read().splitlines()
        except OSError as error:
            raise from_os_error(error, "read", mountinfo) from None
        left = list(CONTROLLERS)
        found = []
        for path, version, names in _mounts(lines):
            here = tuple(c for c in left if c in names)
            if here:
                found.append(Hierarchy(path, version, here))
                left = [c for c in left if c not in here]
        return cls(tuple(found))

    def of(self, controller: Controller) -> Hierarchy | None:
        return next((h for h in self.all if controller in h.controllers), None)

    def require(self, controller: Controller) -> Hierarchy:
        """:raises UnsupportedOperationError: this host does not have the controller."""
        found = self.of(controller)
        if found is None:
            raise UnsupportedOperationError(
                f"cannot limit {controller}: no cgroup hierarchy of this host has the {controller} controller; "
                "mount /sys/fs/cgroup, or enable the controller on the kernel command line",
                controller=controller,
            )
        return found


def _mounts(lines: list[str]) -> list[tuple[str, Literal[1, 2], set[str]]]:
    """Path, version and controllers of every cgroup mount, v1 first: there a controller is only where it is mounted."""
    first: list[tuple[str, Literal[1, 2], set[str]]] = []
    second: list[tuple[str, Literal[1, 2], set[str]]] = []
    for line in lines:
        fields, _, tail = line.partition(" - ")
        filesystem, _, options = tail.partition(" ")
        path = fields.split()[4].encode("latin-1", "surrogateescape").decode("unicode_escape")
        if filesystem == "cgroup":
            first.append((path, 1, set(options.split()[-1].split(","))))
        elif filesystem == "cgroup2":
            second.append((path, 2, _v2_controllers(path)))
    return first + second


def _v2_controllers(path: str) -> set[str]:
    """The freezer is no controller there: every directory but the root has it (since Linux 5.2)."""
    try:
        with open(os.path.join(path, "cgroup.controllers"), encoding="ascii") as file:
            return {*file.read().split(), "freezer"}
    except OSError:
        return set()
