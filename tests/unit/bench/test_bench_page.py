"""The tables of docs/performance.md and of the terminal, out of recorded reports."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from dsec.bench import page, table
from dsec.bench.figures import Report
from libdsec.protocol.errors import InvalidArgumentError

RECORDED = b"""
{"name": "create",
 "ours": {"value": 5.1, "unit": "ms", "samples": 200, "p99": 9.25, "detail": {"create_ms": 3.9, "stop_ms": 2.2}},
 "peers": {"crun": {"value": 8.3, "unit": "ms", "samples": 100, "p99": 21.3}, "runc": null},
 "floor": {"value": 2.3, "unit": "ms", "samples": 200, "p99": 3.16},
 "ratios": {"crun": 0.6144, "runc": null, "floor": 2.217},
 "machine": {"cores": 2, "memory_mb": 24152, "kernel": "6.18.44", "distribution": "Debian GNU/Linux 12",
             "cgroup": "hybrid, memory on v1", "processor": "a processor", "date": "2026-11-29", "load": 0.25}}
"""


@pytest.fixture
def recorded() -> Report:
    return msgspec.json.decode(RECORDED, type=Report)


def test_the_tables_replace_what_lies_between_the_markers(tmp_path: Path, recorded: Report) -> None:
    file = tmp_path / "performance.md"
    file.write_text(f"# Before\n\n{page.BEGIN}\nold\n{page.END}\n\nafter\n")
    page.write(file, [recorded])
    text = file.read_text()
    assert text.startswith(f"# Before\n\n{page.BEGIN}\n")
    assert text.endswith(f"{page.END}\n\nafter\n")
    assert "old" not in text
    assert "| DSec | 5.1 ms | 9.25 ms | 200 |  |" in text
    assert "| crun | 8.3 ms | 21.3 ms | 100 | 0.614 |" in text
    assert "| runc | not installed | | | |" in text
    assert "| crun | 0.614 | ≤ 0.6 | falls short |" in text
    assert "`dsec bench create`; 2 cores (a processor), 24,152 MB, Linux 6.18.44" in text
    page.write(file, [recorded])
    assert file.read_text() == text
    assert [entry.name for entry in tmp_path.iterdir()] == ["performance.md"]


def test_a_page_without_markers_is_left_alone(tmp_path: Path, recorded: Report) -> None:
    file = tmp_path / "performance.md"
    file.write_text(f"{page.END} and {page.BEGIN}")
    with pytest.raises(InvalidArgumentError, match="cannot write the tables"):
        page.write(file, [recorded])
    assert file.read_text() == f"{page.END} and {page.BEGIN}"
    with pytest.raises(InvalidArgumentError, match="No such file"):
        page.write(tmp_path / "missing.md", [recorded])


def test_the_terminal_shows_ratio_target_and_verdict(recorded: Report) -> None:
    out = io.StringIO()
    Console(width=160, file=out).print(table.render(recorded))
    text = out.getvalue()
    for words in ("0.614", "≤ 0.6", "falls short", "not installed", "floor (C)", "stop_ms 2.2", "Linux 6.18.44"):
        assert words in text
