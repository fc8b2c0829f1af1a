"""Every code block of README and docs runs, unless a comment right above it says `not run:` and why."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"(?P<excuse><!-- not run: [^>]+-->\n)?```(?P<language>python|bash)\n(?P<body>.*?)```", re.S)


def _blocks() -> list[tuple[str, str, str]]:
    found = []
    for document in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]:
        for number, match in enumerate(_BLOCK.finditer(document.read_text()), 1):
            if match["excuse"] is None:
                name = f"{document.relative_to(REPOSITORY)}#{number}"
                found.append((name, match["language"], match["body"]))
    return found


@pytest.mark.needs("root", "aether", "mmdebstrap", "erofs")
@pytest.mark.parametrize(("language", "body"), [b[1:] for b in _blocks()], ids=[b[0] for b in _blocks()])
def test_block_runs(language: str, body: str, node_environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", body] if language == "python" else ["bash", "-euo", "pipefail", "-c", body]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **node_environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
