"""Totals, the report on disk, the page and the tables, out of recorded rollouts."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import io
import os
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from dsec.rollout import report as files
from dsec.rollout import tables
from dsec.rollout.charts import histogram, nice_step, number
from dsec.rollout.outcome import Quantiles, RolloutReport, durations, in_flight, totals
from dsec.rollout.page import render
from libdsec.protocol.errors import FileOperationError, InvalidArgumentError, UnsupportedOperationError


def test_totals(recorded: RolloutReport) -> None:
    sums = totals(recorded)
    assert (sums.tasks, sums.passed, sums.failed, sums.errors, sums.not_run) == (5, 1, 1, 2, 1)
    assert sums.left_behind == 1
    assert sums.sandboxes_per_s == 1.5
    assert sums.exit_code == 1


def test_failed_tasks_are_results_and_no_errors(recorded: RolloutReport) -> None:
    fine = msgspec.structs.replace(recorded, outcomes=recorded.outcomes[:2])
    assert totals(fine).exit_code == 0


def test_a_stage_that_failed_has_no_duration(recorded: RolloutReport) -> None:
    assert durations(recorded, "create") == pytest.approx([100, 300, 200])
    assert durations(recorded, "grade") == pytest.approx([200, 400])
    assert totals(recorded).create_ms == Quantiles(pytest.approx(200), pytest.approx(300))


def test_a_sandbox_is_in_flight_from_create_to_stop(recorded: RolloutReport) -> None:
    levels = in_flight(recorded)
    assert max(level for _, level in levels) == 2
    assert levels[0] == (0.0, 0)
    assert levels[-1] == (2.0, 0)
    assert [level for at, level in levels if at == pytest.approx(0.1)] == [1]


def test_written_and_read_again(tmp_path: Path, recorded: RolloutReport) -> None:
    files.write(recorded, tmp_path / "deep" / "report")
    assert files.read(tmp_path / "deep" / "report") == recorded
    assert files.read(tmp_path / "deep" / "report" / "report.json") == recorded
    assert sorted(p.name for p in (tmp_path / "deep" / "report").iterdir()) == ["report.html", "report.json"]


@pytest.mark.parametrize(
    ("content", "words"), [(None, "No such file"), (b"{}", "not a rollout"), (b"x", "not a rollout")]
)
def test_what_is_no_report_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "report.json").write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=words):
        files.read(tmp_path)


def test_a_place_that_cannot_be_written_is_refused_by_name(tmp_path: Path, recorded: RolloutReport) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileOperationError, match="choose another place"):
        files.make_directory(tmp_path / "file")
    (tmp_path / "report" / "report.html").mkdir(parents=True)
    with pytest.raises(FileOperationError, match="choose another place"):
        files.write(recorded, tmp_path / "report")
    assert [name for name in os.listdir(tmp_path / "report") if name.startswith(".")] == []


def test_a_newer_report_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(b'{"schema": 99}')
    with pytest.raises(UnsupportedOperationError, match="schema 99"):
        files.read(tmp_path)


class _Page(html.parser.HTMLParser):
    """Tags, ids, and the text of each element of interest."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        if values.get("id"):
            self.ids.append(str(values["id"]))
        if tag == "a":
            self.links.append(str(values["href"]))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_shows_every_task_and_escapes_what_sandboxes_said(recorded: RolloutReport) -> None:
    text = render(recorded)
    page = _Page()
    page.feed(text)
    assert page.ids == [f"task-{i}" for i in range(5)]
    assert page.links == [f"#task-{i}" for i in range(5)]
    assert page.tags.count("script") == 1
    assert page.tags.count("svg") == 4
    shown = "".join(page.texts)
    assert "</pre><script>alert(1)</script>␛[31m␀ & 😀" in shown
    assert "no <memory>" in shown
    assert "command:./<model>" in shown
    assert "\x1b" not in text
    assert "1 of 5 passed" in shown
    assert "interrupted: 1 of 5 tasks" in shown
    assert "1 sandboxes could not be stopped" in shown


def test_the_page_allows_nothing_but_its_own_script_and_fetches_nothing(recorded: RolloutReport) -> None:
    text = render(recorded)
    script = re.search("<script>(.*?)</script>", text, re.S)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in text
    assert not re.search(r"""(src|href)=["']?(https?:|//)|@import|url\(""", text)


def test_a_run_of_which_nothing_came_makes_a_page_too(recorded: RolloutReport) -> None:
    empty = msgspec.structs.replace(recorded, outcomes=recorded.outcomes[4:], elapsed_s=0.0)
    assert "nothing came this far" in render(empty)


def test_the_histogram_counts_every_value() -> None:
    counts = [int(n) for n in re.findall(r"ms: (\d+)</title>", histogram([1, 1, 1, 5, 9.99, 100], "ms", "x"))]
    assert sum(counts) == 6
    assert counts[0] == 3


@pytest.mark.parametrize(("span", "ticks", "step"), [(10, 5, 2), (100, 8, 20), (0.37, 8, 0.05), (0, 5, 1), (7, 7, 1)])
def test_steps_of_axes_are_round(span: float, ticks: int, step: float) -> None:
    assert nice_step(span, ticks) == pytest.approx(step)


def test_numbers_are_short() -> None:
    assert [number(v) for v in (0, 0.25, 3.14159, 42.5, 137.6, 1300)] == ["0", "0.25", "3.14", "42.5", "138", "1,300"]


def test_the_terminal_gets_no_control_character(recorded: RolloutReport) -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    console.print(tables.results(recorded))
    console.print(tables.summary(recorded))
    console.print(*tables.one(recorded.outcomes[1]), sep="\n")
    text = out.getvalue()
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "</pre><script>" in text
    for words in ("sandboxes not stopped", "not run", "no <memory>", "200.0 / 300.0 ms"):
        assert words in text
