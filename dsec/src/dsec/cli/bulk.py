"""One verb for many sandboxes: named ones, or all of a job."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from libdsec.client import DSecClient
from libdsec.protocol.errors import DSecError, InvalidArgumentError
from libdsec.protocol.jobs import JobAnswer, JobProgress
from libdsec.protocol.spec import SandboxInfo

from .options import find_sandbox
from .outcome import report, warn
from .output import count, emit, printable, say, waiting

AT_ONCE = 16

JobVerb = Callable[[str, Callable[[JobProgress], None] | None], Awaitable[JobAnswer]]


async def chosen(client: DSecClient, named: Sequence[str]) -> list[str]:
    """The ids of sandboxes by their beginnings, each once."""
    return list(dict.fromkeys([(await find_sandbox(client, name)).id for name in named]))


def check_choice(verb: str, named: Sequence[str], job: str | None) -> None:
    """:raises InvalidArgumentError: not one of both."""
    if bool(named) == (job is not None):
        raise InvalidArgumentError(f"cannot tell what to {verb}: name sandboxes, or give --job, and not both")


async def each(ids: Sequence[str], verb: Callable[[str], Awaitable[SandboxInfo]], doing: str, json: bool) -> int:
    """A verb for each of some sandboxes, a few at a time; one that fails keeps no other from it. The exit code."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(sandbox_id: str) -> SandboxInfo | DSecError:
        async with gate:
            try:
                return await verb(sandbox_id)
            except DSecError as error:  # told below, with the others' answers
                return error

    async with waiting(f"{doing} {count(len(ids))}"):
        answers = await asyncio.gather(*map(one, ids))
    if json:
        emit([{"error": a.body()} if isinstance(a, DSecError) else a for a in answers])
    for answer in answers:
        if not json and isinstance(answer, SandboxInfo):
            say(answer.id)
        elif not json and isinstance(answer, DSecError):
            report(False, answer)
    return max((a.exit_code for a in answers if isinstance(a, DSecError)), default=0)


async def whole_job(job: str, verb: JobVerb, doing: str, done: str, json: bool) -> int:
    """A verb for all sandboxes of a job. The exit code: 1 when some of them failed."""
    with _progress(f"{doing} job {job}") as progress:
        answer = await verb(job, progress)
    if json:
        emit(answer)
    else:
        say(f"{done} {count(answer.done)} of job {printable(job)}")
        for sandbox, why in sorted(answer.failed.items()):
            warn(f"{sandbox}: {why}")
        if answer.failures > len(answer.failed):
            warn(f"and {answer.failures - len(answer.failed)} more failed")
    return int(answer.failures > 0)


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[JobProgress], None] | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns: tuple[Any, ...] = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda event: bar.update(task, completed=event.done, total=event.total)
