"""One run: all tasks, many at a time and bounded, into a report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from dsec.environments import Environment, Task
from libdsec import DSecClient
from libdsec.protocol.errors import InvalidArgumentError

from .agents import Agent
from .outcome import Outcome, RolloutReport
from .stages import Interrupt, Rollout, Settings, Watcher


def choose(tasks: Sequence[Task], wanted: str | None) -> list[Task]:
    """All, the first N, or those named: `12`, or ids separated by commas. An id may leave out what all share.

    :raises InvalidArgumentError: no such task, or none left.
    """
    if wanted is None:
        return list(tasks)
    if wanted.isdecimal():
        chosen = list(tasks[: int(wanted)])
    else:
        by_id = {task.id: task for task in tasks}
        chosen = []
        for name in dict.fromkeys(part.strip() for part in wanted.split(",")):
            task = by_id.get(name)
            if task is None:
                raise InvalidArgumentError(f"cannot find task {name!r}: ids look like {tasks[0].id!r}", field="tasks")
            chosen.append(task)
    if not chosen:
        raise InvalidArgumentError(f"cannot run tasks {wanted!r}: that is none", field="tasks")
    return chosen


async def run(
    client: DSecClient,
    environment: Environment,
    agent: Agent,
    tasks: Sequence[Task],
    settings: Settings,
    parallel: int,
    interrupt: Interrupt,
    watcher: Watcher,
) -> RolloutReport:
    """Every task's outcome, in the order of `tasks`; once `interrupt` is set, at once and with what there is."""
    started_at, begin = time.time(), time.monotonic()
    done: dict[str, Outcome] = {}
    queue = iter(tasks)

    def clock() -> float:
        return time.monotonic() - begin

    async def work(queue: Iterator[Task]) -> None:
        for task in queue:
            if interrupt.is_set:
                return
            done[task.id] = await Rollout(
                client, environment, agent, task, settings, interrupt, clock, watcher
            ).run()  # fmt: skip

    async with asyncio.TaskGroup() as group:
        for _ in range(min(parallel, len(tasks))):
            group.create_task(work(queue))
    return RolloutReport(
        environment=environment.name,
        agent=agent.name,
        image=settings.image,
        parallel=parallel,
        timeout_s=settings.timeout_s,
        started_at=started_at,
        elapsed_s=clock(),
        interrupted=interrupt.is_set,
        outcomes=tuple(done.get(task.id, Outcome(task.id, "not_run")) for task in tasks),
    )
