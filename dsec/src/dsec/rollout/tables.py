"""A report for a terminal: rich tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from .outcome import Outcome, Quantiles, RolloutReport, totals

_STYLES = {"passed": "green", "failed": "yellow", "error": "red", "not_run": "dim"}


def _pair(pair: Quantiles | None) -> str:
    return "-" if pair is None else f"{pair.p50:.1f} / {pair.p99:.1f} ms"


def summary(report: RolloutReport) -> Table:
    """The last table of a run."""
    sums = totals(report)
    table = Table(title=f"{report.environment}, agent {report.agent}, {report.image}", title_justify="left")
    table.add_column("what")
    table.add_column("figure", justify="right")
    rows = [
        ("passed", Text(f"{sums.passed}", style="green")),
        ("failed", Text(f"{sums.failed}", style="yellow" if sums.failed else "")),
        ("errors", Text(f"{sums.errors}", style="red" if sums.errors else "")),
        *((("not run", Text(f"{sums.not_run}", style="red")),) if sums.not_run else ()),
        *((("sandboxes not stopped", Text(f"{sums.left_behind}", style="red")),) if sums.left_behind else ()),
        ("sandboxes / s", Text(f"{sums.sandboxes_per_s:.1f}")),
        ("create p50 / p99", Text(_pair(sums.create_ms))),
        ("run p50 / p99", Text(_pair(sums.run_ms))),
        ("seconds", Text(f"{report.elapsed_s:.1f}")),
    ]
    for name, figure in rows:
        table.add_row(name, figure)
    return table


def results(report: RolloutReport) -> Table:
    """A line a task."""
    table = Table()
    for name in ("task", "result", "how it ended"):
        table.add_column(name, overflow="fold")
    for name in ("create ms", "run ms"):
        table.add_column(name, justify="right")
    for outcome in report.outcomes:
        create, run = outcome.duration_ms("create"), outcome.duration_ms("grade")
        table.add_row(
            Text(outcome.task),
            Text(outcome.result, style=_STYLES[outcome.result]),
            Text(outcome.fault.message if outcome.fault else outcome.how),
            "" if create is None else f"{create:.1f}",
            "" if run is None else f"{run:.1f}",
        )
    return table


def one(outcome: Outcome) -> Iterator[RenderableType]:
    """Everything of one task. What a sandbox printed is stripped of what a terminal would obey."""
    yield Text.assemble((outcome.task, "bold"), "  ", (outcome.result, _STYLES[outcome.result]), "  ", outcome.how)
    faults = [fault for fault in (outcome.fault, outcome.left_behind) if fault is not None]
    for fault in faults:
        yield Text(f"{fault.code} while in stage {fault.stage}: {fault.message}", style="red")
    for name, text in (("answer", outcome.answer), ("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        if text:
            yield Text(f"{name}:", style="dim")
            yield Text(printable(text).rstrip("\n"))


def printable(text: str) -> str:
    """Without control characters but newline and tab."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
