"""Stopping every process of a directory where it stands, and letting it go on.

v1 has a hierarchy for it: `freezer.state` is THAWED, FREEZING or FROZEN. A process that cannot be stopped yet (it waits
in the kernel) leaves it at FREEZING, and writing FROZEN again makes the kernel look again. A process killed while it is
frozen ends only when it is thawed. One that waits for the answer to a pre-content event (`linux.fanotify`) is frozen in
the middle of its read, whose pages it keeps locked: whoever else wants one of them waits until the thaw. v2 has
`cgroup.freeze` in each directory, tells in `cgroup.events` when all are frozen, and lets frozen processes be killed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from . import files

Version = Literal[1, 2]

_IN_AN_EVENT = "fanotify_"
"""How the functions of the kernel begin in which an event's answer is waited for."""


def freeze(path: str, version: Version) -> None:
    """Begin, or look again: it is done when `is_frozen` says so."""
    if version == 1:
        files.write(path, "freezer.state", "FROZEN")
    else:
        files.write(path, "cgroup.freeze", "1")


def thaw(path: str, version: Version) -> None:
    if version == 1:
        files.write(path, "freezer.state", "THAWED")
    else:
        files.write(path, "cgroup.freeze", "0")


def is_frozen(path: str, version: Version) -> bool:
    """Every process of it is."""
    if version == 1:
        return files.read(path, "freezer.state").strip() == "FROZEN"
    return files.read_field(path, "cgroup.events", "frozen") == 1


def is_thawed(path: str, version: Version) -> bool:
    """Nobody has asked for it to be frozen."""
    if version == 1:
        return files.read(path, "freezer.state").strip() == "THAWED"
    return files.read(path, "cgroup.freeze").strip() == "0"


def freezable_in_a_read(directories: Iterable[str], version: Version) -> list[int]:
    """Threads that may be frozen while they wait for the answer to an event: on v2, which lets a read come to its end
    first, none."""
    return [] if version == 2 else [thread for path in directories for thread in files.pids(path, "tasks")]


def is_in_a_read(thread: int) -> bool:
    """Whether it waits for the answer to an event."""
    try:
        with open(f"/proc/{thread}/wchan", encoding="ascii") as file:
            return file.read().startswith(_IN_AN_EVENT)
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended
