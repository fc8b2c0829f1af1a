"""docs/performance.md: `dsec bench all` writes the tables between its markers, people the prose around them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from libdsec.protocol.errors import InvalidArgumentError

from . import words
from .figures import TARGETS, Report

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def _summary(reports: Sequence[Report]) -> list[str]:
    lines = ["| what | held against | DSec / it | target | |", "|---|---|---|---|---|"]
    for report in reports:
        for aim in TARGETS[report.name]:
            against = "itself" if aim.against is None else words.LABELS.get(aim.against, aim.against)
            ratio = report.ours.value if aim.against is None else report.ratios.get(aim.against)
            unit = f" {report.ours.unit}" if aim.against is None else ""
            shown = "" if ratio is None else words.number(ratio) + unit
            bound, said = words.bound(aim, report.ours.unit), words.verdict(aim, report)
            lines.append(f"| {words.ABOUT[report.name]} | {against} | {shown} | {bound} | {said} |")
    return lines


def _table(report: Report) -> list[str]:
    lines = [f"### {report.name}: {words.ABOUT[report.name]}", ""]
    lines += ["| | figure | p99 | samples | DSec / it |", "|---|---|---|---|---|"]
    for name, figure in words.rows(report):
        label = words.LABELS.get(name, name)
        if figure is None:
            lines.append(f"| {label} | {report.notes.get(name, 'not installed')} | | | |")
            continue
        ratio = report.ratios.get(name)
        shown = "" if ratio is None else words.number(ratio)
        lines.append(f"| {label} | {words.amount(figure)} | {words.p99(figure)} | {figure.samples} | {shown} |")
    more = words.detail(report.ours)
    lines += [
        "",
        f"`dsec bench {report.name}`; {words.machine(report.machine)}." + (f" Of ours: {more}." if more else ""),
    ]
    return lines


def block(reports: Sequence[Report]) -> str:
    """Everything between the markers."""
    parts = [_summary(reports), *(_table(report) for report in reports)]
    return "\n\n".join("\n".join(part) for part in parts)


def write(page: Path, reports: Sequence[Report]) -> None:
    """Replace what lies between the markers, whole or not at all.

    :raises InvalidArgumentError: no such page, or not one with the markers in order.
    """
    try:
        text = page.read_text("utf-8")
    except OSError as error:
        raise InvalidArgumentError(f"cannot write the tables into {page}: {error.strerror}", field="page") from None
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise InvalidArgumentError(f"cannot write the tables into {page}: it has no {BEGIN} … {END}", field="page")
    new = page.with_name(f".{page.name}.new")
    new.write_text(f"{head}{BEGIN}\n\n{block(reports)}\n\n{END}{tail}", "utf-8")
    os.replace(new, page)
