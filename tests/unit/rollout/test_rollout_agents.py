"""HumanEval's tasks and the shipped agents, judged by this machine's own python."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsec.environments import Environment, Task, load
from dsec.rollout.agents import ANSWER_LIMIT, AgentFailedError, make_agent
from libdsec import ExecResult
from libdsec.protocol.errors import InvalidArgumentError

SAMPLE = (0, 1, 32, 38, 53, 64, 99, 129, 145, 163)
"""Plain ones, and those whose prompt defines a helper, takes no argument, or compares floats."""


@pytest.fixture(scope="module")
def humaneval() -> Environment:
    return load("humaneval")


def _judge(environment: Environment, task: Task, answer: str) -> bool:
    grading = environment.grading(task, answer, 10.0)
    done = subprocess.run([sys.executable, *grading.argv[1:]], input=grading.stdin, capture_output=True, timeout=60)
    result = ExecResult("exited", done.returncode, None, done.stdout, done.stderr, len(done.stdout), 0, 0.1)
    return grading.passed(result)


SANDBOX: Any = SimpleNamespace(id="x" * 24)


def _answer(name: str, task: Task) -> str:
    return asyncio.run(make_agent(name).act(task, SANDBOX))


def test_all_tasks_are_there(humaneval: Environment) -> None:
    tasks = humaneval.tasks()
    assert len(tasks) == len({task.id for task in tasks}) == 164
    assert all(f"def {task.signature}(" in task.prompt for task in tasks)


@pytest.mark.parametrize("number", SAMPLE)
def test_the_oracle_passes_and_the_broken_one_does_not(humaneval: Environment, number: int) -> None:
    task = humaneval.tasks()[number]
    assert _judge(humaneval, task, _answer("oracle", task))
    assert not _judge(humaneval, task, _answer("broken", task))


@pytest.mark.parametrize(
    "answer",
    [
        "    import os; os._exit(0)\n",
        "    raise SystemExit(0)\n",
        "    return (\n",
        "    pass\nprint('" + "0" * 32 + "')\n",
    ],
)
def test_leaving_early_with_0_is_no_pass(humaneval: Environment, answer: str) -> None:
    assert not _judge(humaneval, humaneval.tasks()[0], answer)


def test_output_of_the_answer_before_the_checks_does_no_harm(humaneval: Environment) -> None:
    task = humaneval.tasks()[0]
    assert _judge(humaneval, task, task.solution + "\nprint('hello', end='\\n')\n")


def test_a_token_is_never_used_twice(humaneval: Environment) -> None:
    task = humaneval.tasks()[0]
    assert humaneval.grading(task, "", 1.0).token != humaneval.grading(task, "", 1.0).token


def test_an_unknown_environment_and_agent_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="the known ones are humaneval"):
        load("humanevil")
    for name in ("", "oracle:x", "nobody", "command:", f"command:{tmp_path}/missing"):
        with pytest.raises(InvalidArgumentError, match="cannot use agent"):
            make_agent(name)


def _program(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\nimport os, sys\n{text}\n")
    path.chmod(0o755)
    return f"command:{path}"


def test_a_command_gets_the_prompt_and_its_output_is_the_answer(tmp_path: Path, humaneval: Environment) -> None:
    name = _program(
        tmp_path / "model", "sys.stdout.write(os.environ['DSEC_TASK'] + os.environ['DSEC_SANDBOX'] + sys.stdin.read())"
    )
    task = humaneval.tasks()[2]
    assert _answer(name, task) == task.id + "x" * 24 + task.prompt


def test_a_command_that_ignores_its_prompt_may_answer(tmp_path: Path, humaneval: Environment) -> None:
    name = _program(tmp_path / "model", "os.close(0); print('    return 1')")
    big = Task("t", "x" * 4_000_000, "", "f")
    assert _answer(name, big) == "    return 1\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sys.exit(3)", "ended with 3"),
        ("sys.stdout.buffer.write(bytes([255, 254]))", "not UTF-8"),
        (f"sys.stdout.write('x' * {ANSWER_LIMIT + 1})", "larger than"),
        ("os.kill(os.getpid(), 9)", "ended with -9"),
    ],
)
def test_a_command_that_gives_no_answer_has_failed(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(AgentFailedError, match=words):
        _answer(_program(tmp_path / "model", text), Task("t", "p", "", "f"))


def test_a_command_given_up_leaves_no_process(tmp_path: Path) -> None:
    fifo = tmp_path / "pids"
    os.mkfifo(fifo)
    name = _program(
        tmp_path / "model",
        f"import time\nif os.fork(): open({str(fifo)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)",
    )

    async def given_up() -> int:
        task = asyncio.ensure_future(make_agent(name).act(Task("t", "p", "", "f"), SANDBOX))
        group = int(await asyncio.to_thread(fifo.read_text))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return group

    group = asyncio.run(given_up())
    # those that were no children of ours are killed too, but nobody waited for their end
    deadline = time.monotonic() + 20
    while (left := [pid for pid in _living() if _group(pid) == group]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == []


def _living() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and _group(int(entry.name))]


def _group(pid: int) -> int:
    """Of a process that lives; 0 of one that has ended."""
    try:
        state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if state in "ZX" else int(group)
