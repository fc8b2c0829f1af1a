"""`dsec replay`: a command log run again in fresh sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from dsec.replay.document import Log, parse
from dsec.replay.report import ReplayReport, StepReport
from dsec.replay.run import Progress, replay
from libdsec.client import DSecClient
from libdsec.log import say as say_request
from libdsec.protocol.errors import InvalidArgumentError, NotFoundError

from . import steps
from .options import JsonOption
from .outcome import execute, warn
from .output import emit, printable, say, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

MAX_BYTES = 4 * 1024**3
"""Of a log that is read: it is taken into memory as a whole."""

_VERDICTS = {"same": "32", "different": "31", "nondeterministic": "33", "skipped": "2"}
_VALUE_WIDTH = 24

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="What `dsec log --json` wrote; - is standard input.")]
OtherImageOption = Annotated[
    str | None, typer.Option("--image", metavar="NAME:TAG", help="Instead of the image that is recorded.")
]
KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the fresh sandboxes; a recorded stop is skipped.")]


@app.command("replay")
def replay_(
    file: FileArgument, image: OtherImageOption = None, keep: KeepOption = False, json: JsonOption = False
) -> None:
    """Run a command log again in fresh sandboxes of the same environment, and say of each step whether it came out the
    same.

    \b
    dsec log my-rollout --json --outputs > log.json
    dsec replay log.json
    dsec replay log.json --keep
    dsec log 3f2k --json --outputs | dsec replay -

    A step is `different` when it gives something else than is recorded, and `nondeterministic` when a second fresh
    sandbox gives something else again. Compared are how it ended, exit code, signal, error code, sizes and digests of
    output as far as the log has them, and what file operations told; not times, durations, pids and sizes of
    directories. Terminals, streamed output, and input (which a log does not hold) are skipped; what follows in the same
    sandbox then stands on a gap, and is marked.

    Ends with 0 when all is the same, 1 when a step is different, 3 when some were only nondeterministic.
    """

    async def work(client: DSecClient) -> int:
        log = await asyncio.to_thread(_read, file)
        with _progress() as progress:
            report = await replay(
                log, functools.partial(say_request, client), image=image, keep=keep, progress=progress
            )
        if json:
            emit(report)
        else:
            _show(log, report)
        return report.exit_code

    execute(json, work)


def _read(file: str) -> Log:
    try:
        with sys.stdin.buffer if file == "-" else open(file, "rb") as source:
            data = source.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"cannot read {file!r}: there is no such file", path=file) from None
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {file!r}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise InvalidArgumentError(f"cannot read {file!r}: it has more than {MAX_BYTES} bytes")
    return parse(data)


def _show(log: Log, report: ReplayReport) -> None:
    words = {steps.row(step)[0]: steps.what(step) for step in log.steps}
    rows = [(found.step, words[found.step], found.verdict, _detail(found)) for found in report.steps]
    shades = [_VERDICTS[found.verdict] for found in report.steps]
    table(("STEP", "WHAT", "VERDICT", "WHY"), rows, colours={2: shades})
    say("")
    say(", ".join(f"{count} {verdict}" for verdict, count in report.totals.items()))
    for recorded, kept in report.kept.items():
        warn(f"kept for {recorded}: {', '.join(kept)}")
    if report.steps and report.totals["skipped"] == len(report.steps):
        warn("nothing was compared: all steps were skipped")


def _detail(found: StepReport) -> str:
    told = [found.skipped] if found.skipped else []
    apart = {difference.fact for difference in found.differences}
    for difference in found.differences:
        stream, _, fact = difference.fact.rpartition("_")
        if fact == "sha256":
            if not apart & {f"{stream}_total", f"{stream}_size"}:  # else it says nothing more
                told.append(f"other {stream}")
            continue
        now = f"{_short(difference.recorded)} → {_short(difference.first)}"
        if found.verdict == "nondeterministic":
            now += f" / {_short(difference.second)}"
        told.append(f"{difference.fact} {now}")
    if found.gap:
        told.append(f"(on the gap of {found.gap})")
    return printable("; ".join(told))


def _short(value: object) -> str:
    return steps.cut(str(value), _VALUE_WIDTH)


@contextlib.contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar a run on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    with Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bars:
        tasks = {"first": bars.add_task("first run", total=None)}

        def tell(run: str, done: int, total: int) -> None:
            if run not in tasks:
                tasks[run] = bars.add_task(f"{run} run", total=None)
            bars.update(tasks[run], completed=done, total=total)

        yield tell
