"""The example that is killed and started again ends with the trajectory of one that was left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from libdsec.sync import DSecClient

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "preempted_rollout.py"
STEPS = 24
KILLED_AT = (3, 11, 20)
"""The step that it has begun: near the start, in the middle, near the end."""

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap")


class Trainer:
    """The example as a process."""

    def __init__(self, url: str, image: str, rollout: str, out: Path) -> None:
        command = [sys.executable, str(EXAMPLE), "--rollout", rollout, "--image", image, "--out", str(out)]
        self.process = subprocess.Popen(
            [*command, "--steps", str(STEPS)], env={**os.environ, "DSEC_URL": url}, stdout=subprocess.PIPE, text=True
        )

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        return iter(self.process.stdout)

    def end(self) -> int:
        """Whatever it does."""
        self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(30)


def run_to_its_end(url: str, image: str, rollout: str, out: Path) -> list[str]:
    trainer = Trainer(url, image, rollout, out)
    try:
        lines = list(trainer.lines())
        assert trainer.process.wait(60) == 0
    finally:
        trainer.end()
    return lines


def run_until(step: int, url: str, image: str, rollout: str, out: Path) -> None:
    """Start it and kill it -9 when it says that it begins a step."""
    trainer = Trainer(url, image, rollout, out)
    try:
        assert any(line.startswith(f"step {step} ") for line in trainer.lines()), "it ended before"
        trainer.process.send_signal(signal.SIGKILL)
        assert trainer.process.wait(30) == -signal.SIGKILL
    finally:
        trainer.end()


def test_a_rollout_killed_three_times_has_the_trajectory_of_one_left_alone(
    url: str, image: str, tmp_path: Path
) -> None:
    killed, alone = f"killed-{os.getpid()}", f"alone-{os.getpid()}"
    run_to_its_end(url, image, alone, tmp_path / "alone")
    for step in KILLED_AT:
        run_until(step, url, image, killed, tmp_path / "killed")
        assert not (tmp_path / "killed").exists()
    last = run_to_its_end(url, image, killed, tmp_path / "killed")
    assert last[0] != "attached: 0 steps are recorded\n"
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "alone").read_bytes()
    with DSecClient(url) as client:
        for rollout in (killed, alone):
            assert client.list(rollout=rollout) == ()
            assert len(client.list(rollout=rollout, include_final=True)) == 1
