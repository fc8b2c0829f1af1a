"""One verb over many sandboxes, a bounded number at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from dsec.bus import as_dsec_error
from libdsec.protocol.jobs import JobAnswer

from . import ending, pausing
from .sandbox import Sandbox

if TYPE_CHECKING:
    from .edge import Edge

AT_ONCE = 16
"""More would wait for the same disk and processors; calls of others come in between."""

PROGRESS_S = 0.25
MAX_FAILURES_TOLD = 100

Action = Callable[["Edge", Sandbox, str], Awaitable[None]]

ACTIONS: dict[str, Action] = {"pause": pausing.pause, "resume": pausing.resume, "stop": ending.stop}


async def act(
    edge: Edge, sandboxes: Iterable[Sandbox], action: Action, cause: str, progress: Callable[[int, int], None]
) -> JobAnswer:
    """What was done; whatever fails for one is told and the rest goes on. Those that end meanwhile count as done."""
    waiting = list(sandboxes)
    total, done, failures = len(waiting), 0, 0
    failed: dict[str, str] = {}
    told = edge.clock.monotonic()

    async def worker() -> None:
        nonlocal done, failures, told
        while waiting:
            sandbox = waiting.pop()
            try:
                if not sandbox.final:
                    await action(edge, sandbox, cause)
                done += 1
            except Exception as error:
                if sandbox.final:
                    done += 1
                    continue
                failures += 1
                if len(failed) < MAX_FAILURES_TOLD:
                    failed[sandbox.id] = str(as_dsec_error(error, f"{cause} {sandbox.id}"))
            if edge.clock.monotonic() - told >= PROGRESS_S:
                told = edge.clock.monotonic()
                progress(done + failures, total)

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(AT_ONCE, total)):
            workers.create_task(worker())
    progress(total, total)
    return JobAnswer(done, failed, failures)
