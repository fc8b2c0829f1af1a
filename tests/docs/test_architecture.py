"""ARCHITECTURE.md's tree is the real tree: each room it names exists, and each room that exists is named."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("libdsec/src/libdsec", "dsec/src/dsec", "aether/src")


def _tracked() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [Path(line) for line in listing.splitlines() if (REPOSITORY / line).exists()]


def _described() -> set[str]:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text()
    block = re.search(r"```tree\n(.*?)```", text, re.S)
    assert block is not None, "ARCHITECTURE.md has no tree block"
    return {line.split()[0].rstrip("/") for line in block.group(1).splitlines() if line.strip()}


def test_the_tree_is_the_real_tree() -> None:
    files = _tracked()
    rooms = {
        str(parent)
        for path in files
        if path.suffix in {".py", ".rs", ".c"}
        for parent in path.parents
        if str(parent).startswith(SOURCE_ROOTS)
    }
    top = {path.parts[0] for path in files if len(path.parts) > 1 and not path.parts[0].startswith(".")}
    described = _described()
    assert described - {"libdsec", "dsec", "aether"} == (rooms | top) - {"libdsec", "dsec", "aether"}


def test_links_lead_somewhere() -> None:
    missing = []
    for document in [path for path in _tracked() if path.suffix == ".md"]:
        for target in re.findall(r"\]\(([^)#\s]+)", (REPOSITORY / document).read_text()):
            if "://" not in target and not (REPOSITORY / document.parent / target).exists():
                missing.append(f"{document}: {target}")
    assert missing == []


def test_named_source_files_exist() -> None:
    """A path in backquotes that looks like one of ours must be one."""
    missing = []
    for document in ("ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md"):
        for name in re.findall(
            r"`((?:libdsec|dsec|aether|tests|docs|scripts)/[\w./-]+)`", (REPOSITORY / document).read_text()
        ):
            if not (REPOSITORY / name).exists():
                missing.append(f"{document}: {name}")
    assert missing == []
