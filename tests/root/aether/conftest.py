"""A fork server for each module, and the two layers that its sandboxes stand on: a minimal system of the host's own
distribution (kept in build/ between runs, since making it takes most of a minute), and the prober of probe.c."""

from __future__ import annotations

import platform
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig import Box, ForkServer, aether_binary, hold_image

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]


@pytest.fixture(scope="session")
def base_image() -> Path:
    image = REPOSITORY / "build" / "aether-base.img"
    if image.exists():
        return image
    image.parent.mkdir(exist_ok=True)
    tree, draft = image.parent / f"base-{uuid.uuid4().hex}", image.with_suffix(".draft")
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    try:
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", suite, str(tree)], check=True, timeout=600)
        subprocess.run(["mkfs.erofs", "-d0", str(draft), str(tree)], check=True, capture_output=True, timeout=300)
        draft.rename(image)
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    return image


@pytest.fixture(scope="session")
def probe_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("probe")
    tree = work / "tree"
    (tree / "opt").mkdir(parents=True)
    probe = tree / "opt" / "probe"
    subprocess.run(["cc", "-static", "-O1", "-o", str(probe), str(HERE / "probe.c")], check=True, timeout=60)
    subprocess.run(["mkfs.erofs", "-d0", str(work / "probe.img"), str(tree)], check=True, capture_output=True)
    return work / "probe.img"


@pytest.fixture(scope="module", params=["descriptors", "paths"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, base_image: Path, probe_image: Path
) -> Iterator[ForkServer]:
    """With both layers held, by each of the ways to hand layers to the overlay."""
    server = ForkServer(aether_binary(), tmp_path_factory.mktemp("fs"), "--overlay", request.param)
    try:
        hold_image(server, "base", base_image)
        hold_image(server, "probe", probe_image)
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def box(server: ForkServer) -> Box:
    """A sandbox with every option set."""
    return server.create(layers=["base", "probe"], hostname="cottage", cpus=[1], memory_bytes=256 << 20)
