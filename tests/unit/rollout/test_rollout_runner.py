"""The runner against a platform of this process: bounds, retries, errors, interruption."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from dsec.environments import Environment, Task, load
from dsec.rollout.agents import Agent, AgentFailedError, make_agent
from dsec.rollout.outcome import Outcome, RolloutReport
from dsec.rollout.progress import Display, Tally
from dsec.rollout.runner import choose, run
from dsec.rollout.stages import ATTEMPTS, Interrupt, Settings
from libdsec.protocol.errors import (
    AdmissionRejectedError,
    DSecError,
    ImageNotFoundError,
    InvalidArgumentError,
    OutcomeUnknownError,
    UnavailableError,
)

SETTINGS = Settings(image="debian:12", run_id="r", timeout_s=5.0, agent_timeout_s=5.0)


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsec.rollout.stages.BACKOFF_S", 0.0)


@pytest.fixture(scope="module")
def humaneval() -> Environment:
    return load("humaneval")


def rolled(
    platform: Any,
    environment: Environment,
    count: int,
    agent: Agent | None = None,
    parallel: int = 4,
    interrupt: Interrupt | None = None,
    watcher: Tally | None = None,
) -> RolloutReport:
    tasks = environment.tasks()[:count]
    return asyncio.run(
        run(
            platform,
            environment,
            agent or make_agent("oracle"),
            tasks,
            SETTINGS,
            parallel,
            interrupt or Interrupt(),
            watcher or Tally(count),
        )
    )


def results(report: RolloutReport) -> list[str]:
    return [outcome.result for outcome in report.outcomes]


def test_each_task_has_a_sandbox_of_its_own_and_gives_it_back(platform: Any, humaneval: Environment) -> None:
    report = rolled(platform, humaneval, 20)
    assert results(report) == ["passed"] * 20
    assert [outcome.task for outcome in report.outcomes] == [task.id for task in humaneval.tasks()[:20]]
    assert len({outcome.sandbox for outcome in report.outcomes}) == platform.made == 20
    assert platform.live == set()
    assert platform.most <= 4
    stages = [span.stage for span in report.outcomes[0].spans]
    assert stages == ["create", "act", "grade", "stop"]
    assert {args.labels["rollout"] for args in platform.args} == {"r"}


@pytest.mark.parametrize("error", [AdmissionRejectedError("full"), UnavailableError("not now")])
def test_a_create_is_tried_again_when_its_error_says_it_may(
    platform: Any, humaneval: Environment, error: DSecError
) -> None:
    platform.create_errors = [error, error]
    report = rolled(platform, humaneval, 1)
    assert results(report) == ["passed"]
    assert report.outcomes[0].attempts == 3


@pytest.mark.parametrize("error", [OutcomeUnknownError("lost"), ImageNotFoundError("none")])
def test_a_create_is_never_tried_again_otherwise(platform: Any, humaneval: Environment, error: DSecError) -> None:
    platform.create_errors = [error]
    outcome = rolled(platform, humaneval, 1).outcomes[0]
    assert (outcome.result, outcome.attempts, outcome.sandbox) == ("error", 1, None)
    assert outcome.fault is not None
    assert (outcome.fault.code, outcome.fault.stage) == (error.code, "create")


def test_a_create_is_given_up_after_enough_attempts(platform: Any, humaneval: Environment) -> None:
    platform.create_errors = [UnavailableError("not now") for _ in range(ATTEMPTS)]
    outcome = rolled(platform, humaneval, 1).outcomes[0]
    assert (outcome.result, outcome.attempts) == ("error", ATTEMPTS)
    assert len(platform.args) == ATTEMPTS


def test_a_command_of_unknown_outcome_is_an_error_and_is_not_run_twice(platform: Any, humaneval: Environment) -> None:
    async def lost(program: bytes) -> None:
        raise OutcomeUnknownError("lost")

    platform.on_run = lost
    outcome = rolled(platform, humaneval, 1).outcomes[0]
    assert outcome.result == "error"
    assert outcome.fault is not None
    assert outcome.fault.stage == "grade"
    assert len(platform.commands) == 1
    assert platform.live == set()


def test_a_sandbox_that_cannot_be_stopped_is_told_and_the_result_stands(platform: Any, humaneval: Environment) -> None:
    platform.stop_error = UnavailableError("gone")
    outcome = rolled(platform, humaneval, 1).outcomes[0]
    assert outcome.result == "passed"
    assert outcome.left_behind is not None
    assert outcome.left_behind.code == "unavailable"


class _Agent:
    name = "test"

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act

    async def act(self, task: Task, sandbox: Any) -> str:
        return str(await self._act())


@pytest.mark.parametrize("error", [AgentFailedError("no idea"), ZeroDivisionError("x")])
def test_an_agent_that_fails_is_an_error_of_its_rollout_alone(
    platform: Any, humaneval: Environment, error: Exception
) -> None:
    raised = []

    async def act() -> str:
        if not raised:
            raised.append(error)
            raise error
        return "    pass"

    report = rolled(platform, humaneval, 3, _Agent(act), parallel=1)
    assert results(report) == ["error", "passed", "passed"]
    assert report.outcomes[0].fault is not None
    assert report.outcomes[0].fault.code == "agent_failed"
    assert platform.live == set()


def test_an_interruption_gives_back_every_sandbox_and_reports_what_there_is(
    platform: Any, humaneval: Environment
) -> None:
    interrupt = Interrupt()
    asked = []

    async def act() -> str:
        asked.append(1)
        if len(asked) == 6:
            interrupt.set()
        if len(asked) > 3:
            await asyncio.Event().wait()
        return "    pass"

    report = rolled(platform, humaneval, 30, _Agent(act), parallel=3, interrupt=interrupt)
    assert report.interrupted
    assert sorted(set(results(report))) == ["not_run", "passed"]
    assert results(report).count("passed") == 3
    assert platform.live == set()
    assert platform.made == 6


def test_progress_counts_what_happened(platform: Any, humaneval: Environment) -> None:
    platform.create_errors = [ImageNotFoundError("no image")]
    tally = Tally(5)
    rolled(platform, humaneval, 5, watcher=tally)
    assert (tally.done, tally.live, tally.created_count) == (5, 0, 4)
    assert (tally.results["passed"], tally.results["error"]) == (4, 1)
    assert tally.faults == ["HumanEval/0: image_not_found: no image"]


def test_plain_progress_is_a_line_at_both_ends_and_now_and_then() -> None:
    out = io.StringIO()
    times = iter([0.0] + [i * 2.0 for i in range(100)])
    with Display(Console(file=out), "humaneval oracle", 4, lambda: next(times)) as display:
        for i in range(4):
            display.began(str(i))
            display.created(str(i))
            display.ended(Outcome(str(i), "passed", "s" * 24))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("humaneval oracle: 0/4 done")
    assert lines[-1].startswith("humaneval oracle: 4/4 done, 4 passed, 0 failed, 0 errors, 0 in flight")
    assert 2 <= len(lines) <= 5


def test_choosing_tasks(humaneval: Environment) -> None:
    tasks = humaneval.tasks()
    assert choose(tasks, None) == list(tasks)
    assert choose(tasks, "3") == list(tasks[:3])
    assert [t.id for t in choose(tasks, "HumanEval/9, HumanEval/2,HumanEval/9")] == ["HumanEval/9", "HumanEval/2"]
    for wrong in ("0", "HumanEval/164", "x", ""):
        with pytest.raises(InvalidArgumentError):
            choose(tasks, wrong)
