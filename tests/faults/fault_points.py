"""Who dies, where, and what a program may see of it.

A *victim* is a point in code (`edge:NAME`, `aether:NAME`) at which its process kills itself, or a process that is
killed at a moment drawn by the seed. `ALLOWED` is `docs/promises.md` for this harness: which errors a program may get
when that one dies. Everything else that it gets must be the result of an undisturbed run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent.parent

ARMED, RESTART, REPLACED = "armed", "restart", "replaced"
"""How a point is come to: by the server (or its new fork server) that runs the program; by the one that is started
after a plain death of the first; by the fork server that takes over from one that was killed."""

NOTHING: frozenset[str] = frozenset()
FAILED = frozenset({"sandbox_failed", "outcome_unknown"})
"""The sandbox is gone: a step that was under way may or may not have run, of the others it is said that it failed."""

ALLOWED: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    # victim: errors that stay, errors after which the program asked again
    # the program's own death, and its successor's taking over: all goes on
    "client": (NOTHING, NOTHING),
    "fenced client": (NOTHING, NOTHING),
    # calls wait for the next server and are said to it again
    "edge": (NOTHING, NOTHING),
    "edge twice": (NOTHING, NOTHING),
    # it has the sandboxes only in keeping; a create that was under way surely was not done
    "fork server": (NOTHING, frozenset({"unavailable"})),
    # a create has to wait for one that hangs until its own time is over
    "hung fork server": (frozenset({"deadline_exceeded"}), frozenset({"unavailable"})),
    # PID 1 is the sandbox
    "init": (FAILED, NOTHING),
    # nobody holds the channels of the sandboxes any more, and they end
    "edge and fork server": (FAILED, frozenset({"unavailable"})),
}

CUT_SHORT: dict[str, frozenset[str]] = {
    # what a server was handing over when it died ends with it, and how far it came nobody knows
    "edge": frozenset({"outcome_unknown"}),
    "edge twice": frozenset({"outcome_unknown"}),
}
"""Errors that stay of a step with input, beside those of ALLOWED."""


class Victim(NamedTuple):
    """One way to die."""

    kind: str
    """A key of ALLOWED."""
    point: str = ""
    """`edge:NAME` or `aether:NAME`; nothing: at a drawn moment."""
    how: str = ARMED
    stopping: bool = False
    """Whether it happens when sandboxes are stopped."""

    def __str__(self) -> str:
        return f"{self.kind} at {self.point}" if self.point else f"{self.kind} at a drawn moment"


ELSEWHERE = re.compile(r"edge:(driver\.snapshot\.made$|loading\.)")
"""Come to only on a file system, or with a shared store, that this harness does not have; tests of packing and of
loading die there."""

AFTER_A_RESTART = re.compile(r"edge:(recovery|driver\.adopt)\.")
WHILE_STOPPING = re.compile(r"edge:(stop|driver\.destroy)\.|aether:fork_server\.kill\.")


def points() -> list[str]:
    """Every point that there is in code, each once."""
    found: list[str] = []
    for name, mark, files in (
        ("edge", r'faults\.point\("([^"]+)"\)', (REPOSITORY / "dsec/src").rglob("*.py")),
        ("aether", r'fault::point\("([^"]+)"\)', (REPOSITORY / "aether/src").rglob("*.rs")),
    ):
        for path in sorted(files):
            if path.name != "fault.rs":
                found += [f"{name}:{point}" for point in re.findall(mark, path.read_text())]
    return [point for point in dict.fromkeys(found) if ELSEWHERE.match(point) is None]


def victim(point: str) -> Victim:
    """Who dies at a point, and how it is come to."""
    stopping = WHILE_STOPPING.match(point) is not None
    if point.startswith("edge:"):
        return Victim("edge", point, RESTART if AFTER_A_RESTART.match(point) else ARMED, stopping)
    if point == "aether:fork_server.adopt":
        # the edge that would keep the channels is gone, and the fork server dies as it hands them to the next one
        return Victim("edge and fork server", point, RESTART)
    if point == "aether:fork_server.hold":
        return Victim("fork server", point, REPLACED)
    if point == "aether:init.successor":
        return Victim("init", point, RESTART)
    return Victim("init" if point.startswith("aether:init.") else "fork server", point, ARMED, stopping)


DRAWN = [
    *(Victim(kind) for kind in ALLOWED),
    *(Victim(kind) for kind in ("edge", "client", "init", "fork server")),
    Victim("edge", stopping=True),
    Victim("fork server", stopping=True),
]
"""At a moment that the seed draws; those that are killed most in life come twice."""


def victims() -> list[Victim]:
    """Seed i has the one at i modulo their number."""
    return [*map(victim, points()), *DRAWN]
