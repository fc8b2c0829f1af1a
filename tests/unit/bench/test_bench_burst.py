"""The images of the burst, and its arithmetic."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from dsec.bench import burst, crowd
from dsec.bench.archives import Archive
from dsec.bench.burst import Run
from dsec.bench.crowd import WORKING_SET, Workspace
from dsec.bench.figures import TARGETS, Machine
from libdsec.protocol.images import ImageStats


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {member.name: file.read() for member in archive if (file := archive.extractfile(member))}


def test_workspaces_have_nothing_in_common_but_names(tmp_path: Path) -> None:
    files = {f"workspace/a/{number:03}.py": b"x" * 1000 for number in range(120)}
    trees = []
    for number in range(3):
        with tarfile.open(tmp_path / "one.tar", "w") as target:
            workspace = crowd.add_workspace(target, files, number)
        tree = contents(tmp_path / "one.tar")
        names = tree[WORKING_SET].decode().split("\n")
        assert workspace.needed_bytes == sum(len(tree[name[1:]]) for name in names)
        assert 9_000 < workspace.needed_bytes < 13_000  # a twelfth of 120 KB, and a bit
        assert workspace.content_bytes == sum(map(len, tree.values()))
        trees.append(tree)
    assert len({tree["workspace/a/000.py"] for tree in trees}) == 3
    assert len({tree[WORKING_SET] for tree in trees}) == 3


def test_trees_are_read_from_archives(tmp_path: Path) -> None:
    path = tmp_path / "one.tar.gz"
    with tarfile.open(path, "w:gz") as target:
        for name in ("workspace/b", "workspace/a/c"):
            member = tarfile.TarInfo(name)
            member.size = 3
            target.addfile(member, io.BytesIO(b"abc"))
    found = crowd.read_trees([Archive("one", "workspace", path, "/workspace/b", 2, 6)])
    assert found == {"workspace/one/a/c": b"abc", "workspace/one/b": b"abc"}
    assert list(found) == sorted(found)


def layer(ref: str, present: int, p99: float) -> ImageStats:
    return ImageStats("sha256:0", (ref,), "pre-content", 1000, present, 1, 1, 1, 0.0, p99, 0, 1, False, 0.0)


def test_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Machine(2, 24_000, "6.18", "Debian", "v1", "x", "2026-01-01", 0.1)
    monkeypatch.setattr("dsec.bench.burst.machine", lambda load: facts)
    workspaces = [Workspace(f"burst/workspace-{number}:1", 1000, 10_000_000) for number in range(2)]
    layers = (layer(burst.BASE, 9000, 3.0), layer(workspaces[0].ref, 3000, 7.0), layer(workspaces[1].ref, 1000, 5.0))
    ours = Run(1.0, [0.5, 1.0], 10.0, 4.0, layers)
    least, skopeo = Run(2.0, [2.0], 50.0, 30.0), Run(4.0, [4.0], 100.0, 30.0)
    report = burst._report(0.1, workspaces, ours, least, skopeo, {128: (ours, workspaces)}, 40.0, "somewhere")
    aims = {"skopeo_ready": 0.25, "skopeo_written": 0.1, "least_written": 0.2, "image_bytes": 0.1}
    assert report.ratios == {**aims, "floor": 0.5}
    assert {aim.against for aim in TARGETS["burst"]} == set(aims)
    without = burst._report(0.1, workspaces, ours, least, None, {}, 40.0, "somewhere")
    assert without.ratios == {**report.ratios, "skopeo_ready": None, "skopeo_written": None}
    assert report.ours.detail["amplification"] == 2.0
    assert report.ours.detail["amplification_128k"] == 2.0
    assert report.ours.detail["read_p99_ms"] == 7.0
