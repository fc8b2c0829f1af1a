"""The trees of the layers bench as archives, and its arithmetic."""

from __future__ import annotations

import asyncio
import os
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from dsec.bench import archives, layers
from dsec.bench.archives import Archive, Archives
from dsec.bench.disk import written
from dsec.bench.figures import TARGETS, Machine
from dsec.bench.ground import Ground
from dsec.bench.layers import Measured
from libdsec.protocol.errors import UnavailableError, UnsupportedOperationError


def wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as target:
        program = zipfile.ZipInfo("tool-1.data/scripts/tool")
        program.external_attr = 0o100755 << 16
        target.writestr(program, b"#!/bin/sh\n")
        target.writestr("tool/__init__.py", b"x = 1\n")


def test_wheels_become_archives_that_unpack_where_they_belong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "WORKSPACES", {"work-space": "1"})

    async def download(wheels: Path, packages: Mapping[str, str]) -> None:
        os.mkdir(wheels)
        wheel(wheels / "work_space-1-py3-none-any.whl")
        wheel(wheels / "tool-1-py3-none-manylinux_2_17_x86_64.whl")

    monkeypatch.setattr(archives, "_download", download)
    found = asyncio.run(archives.gather(tmp_path, {"tool": "1"}))
    assert [(each.name, each.kind, each.files) for each in found.workspaces] == [("work-space", "workspace", 2)]
    assert found.toolkits[0].probe == "/opt/tool/tool-1.data/scripts/tool"
    assert found.toolkits[0].content_bytes == 16
    assert "tool 1" in found.origin
    with tarfile.open(found.toolkits[0].path) as archive:
        modes = {member.name: member.mode for member in archive}
    assert modes == {"opt/tool/tool-1.data/scripts/tool": 0o755, "opt/tool/tool/__init__.py": 0o644}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tool.tar.gz", "work-space.tar.gz"]


def test_without_packages_trees_of_the_machine_are_taken_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def download(wheels: Path, packages: Mapping[str, str]) -> None:
        raise UnavailableError("cannot download packages: no Python here has pip")

    def of_machine(directory: Path, why: str) -> Archives:
        return Archives((), (), f"trees of this machine ({why})")

    monkeypatch.setattr(archives, "_download", download)
    monkeypatch.setattr(archives, "_of_machine", of_machine)
    found = asyncio.run(archives.gather(tmp_path))
    assert "trees of this machine" in found.origin
    assert "no Python here has pip" in found.origin


def test_a_tree_of_the_machine(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "file").write_text("content")
    (tree / "link").symlink_to("a")
    found = archives._from_tree(tmp_path, tree, "tree", "toolkit")
    assert (found.probe, found.files, found.content_bytes) == ("/opt/tree/a/file", 1, 7)


def test_a_disk_counts_its_sectors(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    blocks = tmp_path / "blocks"
    with pytest.raises(UnsupportedOperationError, match="--scratch"):
        written(tmp_path, blocks)
    place = blocks / f"{device >> 8 & 0xFFF}:{device & 0xFF}"
    place.mkdir(parents=True)
    (place / "stat").write_text(" 1 2 3 4 5 6 7 8 9 10 11\n")
    assert written(tmp_path, blocks) == 7 * 512


def test_ratios_are_of_readiness_and_of_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    facts = Machine(2, 24_000, "6.18", "Debian", "v1", "x", "2026-01-01", 0.1)
    monkeypatch.setattr("dsec.bench.layers.machine", lambda load: facts)
    ground = Ground(tmp_path, tmp_path, None, None, "debian:12", 0.1)  # type: ignore[arg-type]
    archive = Archive("one", "workspace", tmp_path, "/workspace/a", 10, 2_000_000)
    ways = {"ours": Measured([0.1, 0.3], [1.0]), "tar_gz": Measured([4.0], [400.0])}
    report = layers._report(ground, ways, Archives((archive,), (), "somewhere"), (1.0, 2.0))
    assert report.ratios == {"tar_gz_ready": 0.05, "tar_gz_written": 0.0025}
    assert (report.ours.value, report.ours.samples, report.ours.detail["trees_mb"]) == (0.2, 2, 2.0)
    assert report.notes == {"trees": "somewhere"}
    assert {aim.against for aim in TARGETS["layers"]} == set(report.peers)
