"""Environments: sets of tasks, each with what an agent is told and how its answer is judged.

An environment is a client of the platform with no privileges of its own. It knows three things of a task: the prompt,
the files a sandbox needs before the agent acts, and the *grading*: one command, run in the sandbox after the agent,
outside any session (a session's exit code comes from a shell that the agent's code can replace; a one-shot command's
comes from the kernel), whose end and output say whether the answer is right.

- `task`       the contract
- `humaneval`  the 164 tasks of HumanEval
- `image`      the image of the host's own distribution, for those who name none

An environment is found by name through `load`; its module is imported only then.
"""

from __future__ import annotations

import importlib

from libdsec.protocol.errors import InvalidArgumentError

from .task import Environment, Grading, Task

__all__ = ["ENVIRONMENTS", "Environment", "Grading", "Task", "load"]

ENVIRONMENTS = {"humaneval": "dsec.environments.humaneval"}
"""Name → module with a function `environment()`."""


def load(name: str) -> Environment:
    """:raises InvalidArgumentError: no environment of this name."""
    module = ENVIRONMENTS.get(name)
    if module is None:
        known = ", ".join(sorted(ENVIRONMENTS))
        raise InvalidArgumentError(f"cannot load environment {name!r}: the known ones are {known}", field="environment")
    found: Environment = importlib.import_module(module).environment()
    return found
