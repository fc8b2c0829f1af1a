"""The pause bench's arithmetic, and what it says where this machine cannot do a kind."""

from pathlib import Path

import pytest

from dsec.bench import page, table, words
from dsec.bench.figures import TARGETS, Machine, Report
from dsec.bench.ground import Ground
from dsec.bench.pause import KINDS, Measured, _report, free_pages_kb

ZONES = """\
Node 0, zone   Normal
  pages free     3932160
  pagesets
    cpu: 0
              count:    1000
              high:     2000
    cpu: 1
              count:    24
"""


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Report:
    facts = Machine(2, 24_000, "6.18", "Debian", "v1", "x", "2026-01-01", 0.1)
    monkeypatch.setattr("dsec.bench.pause.machine", lambda load: facts)
    ground = Ground(tmp_path, tmp_path, None, None, "debian:12", 0.1)  # type: ignore[arg-type]
    measured = {
        "resident_after_zram": Measured(200.0, 10.0, [30.0], [8.0, 9.0, 10.0]),
        "resident_after_files": Measured(200.0, -1.0, [30.0], [8.0]),
    }
    return _report(ground, measured, {"resident_after": "there is no room for a swap file"})


def test_shares_are_of_what_was_taken_and_never_below_nothing(report: Report) -> None:
    assert report.ratios == {"resident_after": None, "resident_after_zram": 0.05, "resident_after_files": 0.0}
    assert (report.ours.value, report.ours.unit, report.ours.samples) == (9.0, "ms", 3)
    assert report.ours.detail["resident_after_zram_mb"] == 10.0
    assert set(KINDS) == {aim.against for aim in TARGETS["pause"] if aim.against}


def test_a_kind_that_cannot_be_had_is_null_with_its_reason(report: Report) -> None:
    assert report.peers["resident_after"] is None
    aim = words.target("pause", "resident_after")
    assert aim is not None
    assert words.verdict(aim, report) == "not measured"
    assert "there is no room for a swap file" in page.block([report])
    assert [cell for column in table.render(report).columns for cell in column.cells if "no room" in str(cell)]


def test_pages_in_lists_of_single_processors_are_free(tmp_path: Path) -> None:
    zones = tmp_path / "zoneinfo"
    zones.write_text(ZONES)
    assert free_pages_kb(zones) == 1024 * 4
