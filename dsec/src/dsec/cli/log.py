"""`dsec log`: what was asked of a sandbox or rollout, step by step, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated

import typer

from dsec.replay import document
from libdsec.client import DSecClient
from libdsec.log import CommandLog
from libdsec.protocol.errors import DSecError, InvalidArgumentError, SandboxNotFoundError
from libdsec.protocol.ids import is_sandbox_id
from libdsec.protocol.steps import OutputRecord, Step, step_name

from . import steps
from .completion import scopes
from .options import JsonOption, find_sandbox
from .outcome import execute, warn
from .output import amount, emit, printable, say, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_ROWS = 200
"""Steps shown unless told otherwise."""

_WIDTHS = (14, 18, 8, steps.WHAT_WIDTH, 16, 8)
"""Of columns whose rows are printed as they come."""

ScopeArgument = Annotated[
    str, typer.Argument(metavar="SCOPE", help="A sandbox, or the name of a rollout.", autocompletion=scopes)
]
StepArgument = Annotated[
    str | None, typer.Argument(metavar="[STEP]", help="One step, such as main#7: all of it, and its output.")
]


@app.command()
def log(
    scope: ScopeArgument,
    step: StepArgument = None,
    track: Annotated[str | None, typer.Option(help="Only steps of this track.")] = None,
    last: Annotated[
        int | None, typer.Option("--last", "-n", min=1, help="The last so many. [default: 200; with --json all]")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with each step as it ends.")] = False,
    outputs: Annotated[
        bool, typer.Option("--outputs", help="With --json: all of each step's output, not only where it is small.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show the command log of a sandbox or rollout: each step, what it was asked, and how it ended.

    \b
    dsec log 3f2k
    dsec log 3f2k main#7
    dsec log my-rollout --last 50 --follow
    dsec log my-rollout --json --outputs > log.json; dsec replay log.json

    Looking changes nothing, and holds nobody up. With --json it is a document that `dsec replay` reads, which compares
    only what is in it: without --outputs the output of a step with more than 4 KiB is there as its size alone.
    With --follow --json each step is one line.
    """

    async def work(client: DSecClient) -> int:
        if outputs and not json:
            raise InvalidArgumentError("cannot show outputs without --json: add it, or name one STEP", field="outputs")
        if step is not None and (track is not None or last is not None or follow):
            raise InvalidArgumentError(
                f"cannot choose steps besides {step}: leave out --track, --last and --follow, or STEP", field="step"
            )
        found = await _find(client, scope)
        if step is not None:
            await _one(found, step, json)
        elif follow:
            await _follow(found, track, last, outputs, json)
        elif json:
            return await _export(found, track, last, outputs)
        else:
            await _show(found, track, last)
        return 0

    execute(json, work)


async def _find(client: DSecClient, scope: str) -> CommandLog:
    """Of a rollout by its name, or a sandbox by its id or a beginning of it.

    :raises SandboxNotFoundError: nothing is known of such a name.
    """
    log = await CommandLog.find(client, scope)
    if is_sandbox_id(scope) or await _has_steps(log):
        return log
    try:
        return await CommandLog.find(client, (await find_sandbox(client, scope)).id)
    except SandboxNotFoundError:
        if any(rollout.name == scope for rollout in await client.rollouts()):
            return log
        raise SandboxNotFoundError(
            f"cannot find the log of {scope!r}: no rollout has this name, and no sandbox's id begins so", scope=scope
        ) from None


async def _has_steps(log: CommandLog) -> bool:
    async with aclosing(log.pages(limit=1, requests=False)) as reading:
        async for page in reading:
            if page:
                return True
    return False


async def _show(log: CommandLog, track: str | None, last: int | None) -> None:
    found: list[Step] = []
    async with aclosing(log.pages(track=track, limit=last or _ROWS, last=True)) as reading:
        async for page in reading:
            found += page
    if last is None and len(found) == _ROWS:
        warn(f"these are the last {_ROWS} steps; --last shows more, --json all")
    table(steps.HEADERS, [steps.row(step) for step in found], colours={4: [steps.colour(step) for step in found]})


async def _export(log: CommandLog, track: str | None, last: int | None, outputs: bool) -> int:
    """Written as it is read: a log may be larger than the memory. What goes wrong ends the document."""
    separator = ""
    say(document.head(log.scope))
    try:
        async with aclosing(log.pages(track=track, limit=last or 0, last=last is not None)) as reading:
            async for page in reading:
                for step in page:
                    say(separator + document.line(await log.whole(step) if outputs else step))
                    separator = ","
    except DSecError as error:
        say(document.tail(error))
        return error.exit_code
    say(document.tail())
    return 0


async def _follow(log: CommandLog, track: str | None, last: int | None, outputs: bool, json: bool) -> None:
    if not json:
        _row(steps.HEADERS, "")
    async with aclosing(log.follow(track=track, limit=last or _ROWS, last=True)) as following:
        async for step in following:
            if json:
                say(document.line(await log.whole(step) if outputs else step))
            else:
                _row(steps.row(step), steps.colour(step))
            sys.stdout.flush()


def _row(cells: Sequence[str], colour: str) -> None:
    """A row of a table that has no end."""
    padded = [printable(cell).ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)]
    if colour and sys.stdout.isatty():
        padded[4] = f"\x1b[{colour}m{padded[4]}\x1b[0m"
    say("  ".join(padded).rstrip())


async def _one(log: CommandLog, name: str, json: bool) -> None:
    track, sign, number = name.rpartition("#")
    if not sign or not track or not number.isdecimal():
        raise InvalidArgumentError(
            f"cannot find step {name!r}: it is TRACK#NUMBER as `dsec log` shows it, such as main#7", field="step"
        )
    step = await log.step(track, int(number))
    if json:
        emit(document.entry(step))
        return
    _describe(step)
    for stream, record in (("stdout", step.stdout), ("stderr", step.stderr)):
        _output(stream, record)


def _describe(step: Step) -> None:
    entry = document.entry(step)
    ended = "" if step.ended_at is None else f" to {steps.moment(step.ended_at)}"
    lines = {
        "step": step_name(step.track, step.n),
        "method": step.method,
        "sandbox": step.sandbox,
        "time": f"{steps.moment(step.began_at)}{ended} ({steps.took(step)})",
        "outcome": steps.outcome(step),
        "by": step.principal,
        "opaque": step.opaque,
        "input": f"SHA-256 {entry.input_digest}" if entry.input_digest else "",
        "digest": entry.digest,
    }
    for name, value in lines.items():
        if value:
            say(f"{name.ljust(8)} {printable(value)}")
    for name, value in (("request", entry.request), ("answer", entry.answer)):
        say(name)
        for key, inner in value.items() if isinstance(value, dict) else (("", value),):
            say(f"  {printable(str(key)).ljust(12)} {printable(inner if isinstance(inner, str) else repr(inner))}")


def _output(stream: str, record: OutputRecord) -> None:
    """As text, what could move the cursor taken out."""
    if not record.size:
        return
    say(f"{stream} ({amount(record.size)})")
    if record.data is None:
        say("  is not recorded")
        return
    for line in record.data.decode("utf-8", "replace").splitlines():
        say(f"  {printable(line.expandtabs())}")
