"""A fork server for each module, and the two layers that its sandboxes stand on: the image that all tests share, and
the prober of probe.c."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conversation import Conversation
from rig import Box, ForkServer, Image, aether_binary, hold_image

from dsec.store.catalogue import Catalogue

HERE = Path(__file__).parent
NEEDS = pytest.mark.needs(
    "root", "erofs-from-files", "overlay", "aether", "cgroup-v1", "mmdebstrap", "mkfs.erofs", "cc"
)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Each test here needs the same."""
    item.add_marker(NEEDS)


@pytest.fixture(scope="session")
def base_image(image_state: Path) -> Image:
    catalogue = Catalogue(str(image_state / "catalogue.db"))
    try:
        ((layer,),) = (image.layers for image in catalogue.list())
    finally:
        catalogue.close()
    return Image(layer.metadata, layer.data)


@pytest.fixture(scope="session")
def probe_image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    work = tmp_path_factory.mktemp("probe")
    tree = work / "tree"
    (tree / "opt").mkdir(parents=True)
    probe = tree / "opt" / "probe"
    subprocess.run(["cc", "-static", "-O1", "-o", str(probe), str(HERE / "probe.c")], check=True, timeout=60)
    subprocess.run(["mkfs.erofs", "-d0", str(work / "probe.img"), str(tree)], check=True, capture_output=True)
    return Image(str(work / "probe.img"))


@pytest.fixture(scope="module", params=["descriptors", "paths"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, base_image: Image, probe_image: Image
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


@pytest.fixture(scope="module")
def talk(box: Box) -> Conversation:
    return Conversation(box)
