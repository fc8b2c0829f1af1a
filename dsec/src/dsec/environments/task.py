"""The contract of an environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from libdsec.protocol.exec import ExecResult


class Task(msgspec.Struct, frozen=True):
    """One thing for an agent to do."""

    id: str
    prompt: str
    """What the agent is told, whole."""
    solution: str
    """The reference answer, for the `oracle` agent and nobody else."""
    signature: str
    """What the answer must define, for agents that fake one: a function's name."""
    files: dict[str, bytes] = {}
    """Absolute path in the sandbox → content, there before the agent acts."""


class Grading(msgspec.Struct, frozen=True):
    """One command that judges an answer, and how to read its end."""

    argv: tuple[str, ...]
    stdin: bytes
    timeout_s: float
    token: str
    """Drawn for this grading; the last line of stdout must be this, printed after everything else held."""

    def passed(self, result: ExecResult) -> bool:
        """Exit code 0 and the token: a program that leaves early with 0 has shown nothing."""
        return result.ok and result.stdout_bytes.rstrip(b"\n").rpartition(b"\n")[2] == self.token.encode()


class Environment(Protocol):
    """A set of tasks. Pure: no call of it touches a sandbox."""

    name: str

    def tasks(self) -> Sequence[Task]:
        """All tasks, in the environment's own order, ids unique."""
        ...

    def grading(self, task: Task, answer: str, timeout_s: float) -> Grading:
        """How `answer` is judged. Draws a fresh token: never use one grading twice."""
        ...
