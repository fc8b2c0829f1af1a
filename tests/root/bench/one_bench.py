"""One bench, run as `dsec bench` does, on a node of its own with its scratch below a test's directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dsec.bench.figures import Report
from dsec.bench.ground import Options
from dsec.bench.run import run


def reported(
    name: str, samples: int, node_environment: dict[str, str], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> Report:
    monkeypatch.setenv("DSEC_AETHER", node_environment["DSEC_AETHER"])
    options = Options(scratch=str(scratch), state_dir=node_environment["DSEC_STATE_DIR"])

    async def reports() -> list[Report]:
        return [report async for report in run([name], samples, options, lambda text: None)]

    (report,) = asyncio.run(reports())
    return report
