"""`dsec doctor`: what this machine can do."""

from __future__ import annotations

import asyncio
import os
import sys

import typer

from libdsec.client import DSecClient
from libdsec.protocol.nodes import DoctorReport

from .options import JsonOption
from .outcome import execute_alone
from .output import emit, say, waiting

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_MARKS = {"ok": ("ok      ", "32"), "degraded": ("degraded", "33"), "missing": ("missing ", "31")}


@app.command()
def doctor(json: JsonOption = False) -> None:
    """Try what this machine can do, and say what to do where it cannot.

    \b
    dsec doctor
    dsec doctor --json

    Each capability is tried, not guessed from versions; that needs root. With DSEC_URL it is the server's machine.
    Ends with 1 when something that sandboxes need is missing.
    """

    async def work() -> int:
        async with waiting("trying this machine"):
            report = await _report()
        if json:
            emit(report)
        else:
            _show(report)
        return int(any(finding.verdict == "missing" for finding in report.findings))

    execute_alone(json, work)


async def _report() -> DoctorReport:
    if os.environ.get("DSEC_URL"):
        async with DSecClient(track="cli") as client:
            return await client.doctor()
    # without the server: what keeps it from starting is what one wants to know
    from dsec.linux.probe import findings

    return DoctorReport(tuple(await asyncio.to_thread(findings)))


def _show(report: DoctorReport) -> None:
    width = max((len(finding.name) for finding in report.findings), default=0)
    for finding in report.findings:
        mark, colour = _MARKS[finding.verdict]
        if sys.stdout.isatty():
            mark = f"\x1b[{colour}m{mark}\x1b[0m"
        say(f"{mark}  {finding.name.ljust(width)}  {finding.detail}")
        if finding.remedy and finding.verdict != "ok":
            say(f"{' ' * (12 + width)}{finding.remedy}")
