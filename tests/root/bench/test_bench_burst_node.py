"""The burst bench with small trees: on demand and both full pulls run to their ends, all is counted, nothing stays."""

from __future__ import annotations

import io
import random
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from one_bench import reported

from dsec.bench.archives import Archive, Archives

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether", "mmdebstrap", "cc")


def test_on_demand_and_pulled(
    node_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def small(directory: Path, toolkits: Mapping[str, object]) -> Archives:
        path = directory / "space.tar.gz"
        with tarfile.open(path, "w:gz") as target:
            for number in range(120):
                member = tarfile.TarInfo(f"workspace/{number}")
                member.size = 30_000
                target.addfile(member, io.BytesIO(random.Random(number).randbytes(30_000)))
        return Archives((Archive("space", "workspace", path, "/workspace/1", 120, 3_600_000),), (), "small trees")

    monkeypatch.setattr("dsec.bench.burst.gather", small)
    monkeypatch.setattr("dsec.bench.burst.CHUNK_IMAGES", 1)
    monkeypatch.setattr("dsec.bench.burst.CHUNKS_KIB", (512,))
    monkeypatch.setattr("dsec.bench.burst.BANDWIDTH_MB", 0.0)
    monkeypatch.setattr("dsec.bench.registry.LEVEL", 0)
    report = reported("burst", 10, node_environment, tmp_path, monkeypatch)
    assert report.ours.samples == 10
    assert report.floor is not None
    assert report.floor.samples == 2  # images
    assert (report.peers["skopeo_ready"] is None) == (shutil.which("skopeo") is None)
    assert 0 < report.ours.detail["fetched_mb"] < report.ours.detail["pulled_mb"]
    assert list(tmp_path.iterdir()) == []
