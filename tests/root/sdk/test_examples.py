"""Every example runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MINE = ("first_sandbox", "blocking", "outcomes", "many", "session", "streaming", "files", "packing")

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap")


@pytest.mark.parametrize("name", MINE)
def test_example_runs(name: str, url: str, image: str):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        env={**os.environ, "DSEC_URL": url, "DSEC_IMAGE": image},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
