"""Running a trial of `trials` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

_TIMEOUT_S = 20


def in_child(name: str) -> Callable[[str], str]:
    """The trial of that name as an attempt."""

    def attempt(scratch: str) -> str:
        directory = tempfile.mkdtemp(prefix=f"{name}-", dir=scratch)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "dsec.linux.probe.trials", name, directory],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no answer for {_TIMEOUT_S} s") from None
        said = done.stdout.strip()[:500]
        if done.returncode != 0:
            raise RuntimeError(said or f"ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return said

    return attempt
