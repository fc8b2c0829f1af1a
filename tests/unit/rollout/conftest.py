"""Recorded rollouts, and a platform of this process for the runner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dsec.rollout.outcome import Fault, Outcome, RolloutReport, Span
from libdsec import DSecContainerRunArgs, ExecResult
from libdsec.protocol.errors import DSecError

HOSTILE = "</pre><script>alert(1)</script>\x1b[31m\x00 & \ud83d\ude00".encode("utf-16", "surrogatepass").decode(
    "utf-16"
)


def _spans(start: float, *lengths: float) -> tuple[Span, ...]:
    spans = []
    for stage, length in zip(("create", "act", "grade", "stop"), lengths, strict=False):
        spans.append(Span(stage, start, start + length))  # type: ignore[arg-type]
        start += length
    return tuple(spans)


@pytest.fixture
def recorded() -> RolloutReport:
    """Five tasks: passed, failed with hostile output, error after create, error in create, not run."""
    return RolloutReport(
        environment="humaneval",
        agent="command:./<model>",
        image="debian:12",
        parallel=4,
        timeout_s=10.0,
        started_at=1_764_400_000.0,
        elapsed_s=2.0,
        interrupted=True,
        outcomes=(
            Outcome(
                "HumanEval/0", "passed", "a" * 24, 1, _spans(0.0, 0.1, 0.0, 0.2, 0.05), "exit code 0", "    return 1\n"
            ),
            Outcome(
                "HumanEval/1",
                "failed",
                "b" * 24,
                2,
                _spans(0.1, 0.3, 0.0, 0.4, 0.05),
                "exit code 1",
                HOSTILE,
                HOSTILE,
                "AssertionError",
                True,
            ),
            Outcome(
                "HumanEval/2",
                "error",
                "c" * 24,
                1,
                _spans(0.2, 0.2, 0.0, 0.9),
                fault=Fault("outcome_unknown", "the connection was lost", "grade"),
                left_behind=Fault("unavailable", "cannot stop", "stop"),
            ),
            Outcome(
                "HumanEval/3", "error", None, 6, _spans(0.3, 1.5), fault=Fault("capacity", "no <memory>", "create")
            ),
            Outcome("HumanEval/4", "not_run"),
        ),
    )


def ended(exit_code: int = 0, stdout: bytes = b"") -> ExecResult:
    return ExecResult("exited", exit_code, None, stdout, b"", len(stdout), 0, 0.01)


class Sandbox:
    def __init__(self, platform: Platform, number: int) -> None:
        self.id = f"{number:024d}"
        self._platform = platform

    async def run(self, argv: Sequence[str], *, stdin: bytes | None = None, **_: Any) -> ExecResult:
        self._platform.commands.append(tuple(argv))
        return await self._platform.on_run(stdin or b"")

    async def stop(self) -> None:
        self._platform.live.discard(self.id)
        if self._platform.stop_error is not None:
            raise self._platform.stop_error


class Platform:
    """Stands where the SDK's client does. `create_errors` are raised by the next creates, one each."""

    def __init__(self) -> None:
        self.live: set[str] = set()
        self.most = self.made = 0
        self.args: list[DSecContainerRunArgs] = []
        self.commands: list[tuple[str, ...]] = []
        self.create_errors: list[DSecError] = []
        self.stop_error: DSecError | None = None
        self.on_run: Callable[[bytes], Any] = self._honest

    async def run_container(self, args: DSecContainerRunArgs, *, timeout: float) -> Sandbox:
        self.args.append(args)
        await asyncio.sleep(0)
        if self.create_errors:
            raise self.create_errors.pop(0)
        self.made += 1
        sandbox = Sandbox(self, self.made)
        self.live.add(sandbox.id)
        self.most = max(self.most, len(self.live))
        return sandbox

    async def _honest(self, program: bytes) -> ExecResult:
        """As if every check held: prints what the program's last line prints."""
        await asyncio.sleep(0)
        return ended(0, program.rstrip().rpartition(b"print('")[2].partition(b"'")[0] + b"\n")


@pytest.fixture
def platform() -> Platform:
    return Platform()
