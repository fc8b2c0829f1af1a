"""A report for a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from . import words
from .figures import Report

_STYLES = {"holds": "green", "falls short": "red", "not measured": "dim"}


def render(report: Report) -> Table:
    """Medians, p99, ratios, and the target where there is one."""
    table = Table(
        title=f"{report.name}: {words.ABOUT[report.name]}",
        caption=f"{words.machine(report.machine)}; {words.detail(report.ours)}".rstrip("; "),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("")
    for heading in ("figure", "p99", "samples", "DSec / it", "target"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for name, figure in words.rows(report):
        label = words.LABELS.get(name, name)
        if figure is None:
            table.add_row(label, Text(report.notes.get(name, "not installed"), style="dim"))
            continue
        aim = words.target(report.name, name)
        said = "" if aim is None else words.verdict(aim, report)
        ratio = report.ratios.get(name)
        table.add_row(
            Text(label, style="bold" if name == "ours" else ""),
            words.amount(figure),
            words.p99(figure),
            str(figure.samples),
            "" if ratio is None else words.number(ratio),
            "" if aim is None else words.bound(aim, figure.unit),
            Text(said, style=_STYLES.get(said, "")),
        )
    return table
