"""What a run of rollouts came to: values, and the arithmetic over them. No I/O.

Four results are never mixed up: a task `passed` or `failed` (both are results of a rollout that went through), it
ended in an `error` (the platform or the agent could not do its part; the fault says which stage and what kind), or it
was `not_run` (the run was interrupted before its turn or in the middle of it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

SCHEMA = 1

Result = Literal["passed", "failed", "error", "not_run"]
RESULTS: tuple[Result, ...] = ("passed", "failed", "error", "not_run")
Stage = Literal["create", "prepare", "act", "grade", "stop"]


class Fault(msgspec.Struct, frozen=True):
    """Why a rollout ended in an error."""

    code: str
    """Of the error tree, or `agent_failed`."""
    message: str
    stage: Stage


class Span(msgspec.Struct, frozen=True):
    """When one stage ran, in seconds since the run's start."""

    stage: Stage
    start: float
    end: float


class Outcome(msgspec.Struct, frozen=True):
    """One task's rollout."""

    task: str
    result: Result
    sandbox: str | None = None
    attempts: int = 1
    """Creates that were tried; more than one only after errors that say a retry is safe."""
    spans: tuple[Span, ...] = ()
    how: str = ""
    """How the grading command ended, in words."""
    answer: str = ""
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    fault: Fault | None = None
    left_behind: Fault | None = None
    """The sandbox could not be stopped; the result stands."""

    def duration_ms(self, stage: Stage) -> float | None:
        """Of the last span of this stage."""
        for span in reversed(self.spans):
            if span.stage == stage:
                return (span.end - span.start) * 1e3
        return None


class RolloutReport(msgspec.Struct, frozen=True):
    """A whole run, as report.json keeps it."""

    environment: str
    agent: str
    image: str
    parallel: int
    timeout_s: float
    started_at: float
    elapsed_s: float
    interrupted: bool
    outcomes: tuple[Outcome, ...]
    schema: int = SCHEMA


class Quantiles(msgspec.Struct, frozen=True):
    p50: float
    p99: float


class Totals(msgspec.Struct, frozen=True):
    """The last lines of a run."""

    tasks: int
    passed: int
    failed: int
    errors: int
    not_run: int
    left_behind: int
    sandboxes_per_s: float
    """Sandboxes that were created, over the whole time."""
    create_ms: Quantiles | None
    run_ms: Quantiles | None
    """The grading command, from the call to its result in hand."""

    @property
    def exit_code(self) -> int:
        """0 only when everything was run and nothing went wrong; failed tasks are results."""
        return 1 if self.errors or self.left_behind or self.not_run else 0


def quantiles(values: Sequence[float]) -> Quantiles | None:
    """Nearest rank; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return Quantiles(*(ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.99)))


def durations(report: RolloutReport, stage: Stage) -> list[float]:
    """Milliseconds of this stage in every rollout that went through it without an error there."""
    found = []
    for outcome in report.outcomes:
        value = outcome.duration_ms(stage)
        if value is not None and not (outcome.fault is not None and outcome.fault.stage == stage):
            found.append(value)
    return found


def totals(report: RolloutReport) -> Totals:
    count = {result: sum(o.result == result for o in report.outcomes) for result in RESULTS}
    created = sum(o.sandbox is not None for o in report.outcomes)
    return Totals(
        tasks=len(report.outcomes),
        passed=count["passed"],
        failed=count["failed"],
        errors=count["error"],
        not_run=count["not_run"],
        left_behind=sum(o.left_behind is not None for o in report.outcomes),
        sandboxes_per_s=created / report.elapsed_s if report.elapsed_s > 0 else 0.0,
        create_ms=quantiles(durations(report, "create")),
        run_ms=quantiles(durations(report, "grade")),
    )


def in_flight(report: RolloutReport) -> list[tuple[float, int]]:
    """(second, sandboxes that exist from then on): from a create's end to a stop's end, or the run's."""
    changes: list[tuple[float, int]] = []
    for outcome in report.outcomes:
        begin = next((s.end for s in reversed(outcome.spans) if s.stage == "create"), None)
        if outcome.sandbox is None or begin is None:
            continue
        end = next((s.end for s in reversed(outcome.spans) if s.stage == "stop"), report.elapsed_s)
        changes += [(begin, 1), (end, -1)]
    steps, level = [(0.0, 0)], 0
    for at, change in sorted(changes):
        level += change
        steps.append((at, level))
    return steps
