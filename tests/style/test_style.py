"""The rules of CONTRIBUTING.md that a machine can check."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
HARD_LIMIT = 600
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def _sources() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [Path(n) for n in listing.splitlines() if n.endswith((".py", ".rs", ".c")) and (REPOSITORY / n).exists()]


def test_files_stay_small() -> None:
    long = [str(p) for p in _sources() if len((REPOSITORY / p).read_text().splitlines()) > HARD_LIMIT]
    assert long == []


def test_modules_of_tests_have_names_of_their_own() -> None:
    """They are imported by name alone: of two with one name pytest takes the first, and then refuses to go on."""
    names = Counter(p.name for p in _sources() if p.parts[0] == "tests" and p.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_no_drawers() -> None:
    assert [str(p) for p in _sources() if p.stem in DRAWERS or DRAWERS & set(p.parts)] == []


def test_every_package_says_what_it_is() -> None:
    silent = [
        str(p)
        for p in _sources()
        if p.name == "__init__.py"
        and p.parts[0] in {"libdsec", "dsec"}
        and '"""' not in (REPOSITORY / p).read_text()[:400]
    ]
    assert silent == []
