"""How a trial says how it went."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from libdsec.protocol.nodes import Finding, Verdict


class Trial(NamedTuple):
    """One capability. `attempt` returns what it saw, or raises what went wrong."""

    name: str
    attempt: Callable[[str], str]
    """Called with a scratch directory on the file system of the node's state."""
    without: Verdict
    """What it means when it fails: `missing` when no sandbox can run, `degraded` when something else serves."""
    remedy: str


class Degraded(Exception):
    """It works, but less well than it could."""

    def __init__(self, detail: str, remedy: str | None = None) -> None:
        super().__init__(detail)
        self.remedy = remedy


def judge(trial: Trial, scratch: str) -> Finding:
    """Run a trial. Whatever it raises is its finding: a machine that lacks something must not end the report."""
    try:
        return Finding(trial.name, "ok", trial.attempt(scratch))
    except Degraded as outcome:
        return Finding(trial.name, "degraded", str(outcome), outcome.remedy or trial.remedy)
    except Exception as error:
        return Finding(trial.name, trial.without, str(error) or type(error).__name__, trial.remedy)
