"""The layers bench on a node of its own, with small trees: both ways run, both are counted, nothing stays."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from one_bench import reported

from dsec.bench.archives import Archive, Archives
from libdsec.protocol.environment import LayerKind

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether", "mmdebstrap", "cc")


def archive(directory: Path, name: str, kind: LayerKind, place: str) -> Archive:
    path = directory / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as target:
        member = tarfile.TarInfo(f"{place}/file")
        member.size = 500_000
        target.addfile(member, io.BytesIO(bytes(range(250)) * 2000))
    return Archive(name, kind, path, f"/{place}/file", 1, member.size)


def test_composed_and_unpacked(
    node_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def small(directory: Path) -> Archives:
        toolkits = tuple(archive(directory, name, "toolkit", f"opt/{name}") for name in ("one", "two"))
        return Archives((archive(directory, "space", "workspace", "workspace"),), toolkits, "small trees")

    monkeypatch.setattr("dsec.bench.layers.gather", small)
    monkeypatch.setattr("dsec.bench.rounds.SETTLE_S", 0.0)
    report = reported("layers", 2, node_environment, tmp_path, monkeypatch)
    written, ready = report.peers["tar_gz_written"], report.peers["tar_gz_ready"]
    assert written is not None
    assert ready is not None
    assert report.ours.samples == ready.samples == 2
    assert written.value > 1.0  # three trees of half a megabyte
    assert report.ratios["tar_gz_ready"]
    assert report.notes == {"trees": "small trees"}
    assert list(tmp_path.iterdir()) == []
