"""What an edge may expect of its images (`dsec.edge.images.Images`): the node's own store, and the fake that ships."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.edge.images import Images, StoreImages
from dsec.store.local import LocalStore
from dsec.store.mounts import LayerMounts
from dsec.store.records import LayerRecord
from dsec.testing.fake_images import FakeImages
from libdsec.protocol.environment import BuildProgress, ImageBuildRequest, ImageConfig
from libdsec.protocol.errors import AlreadyExistsError, ConflictError, ImageNotFoundError, InvalidArgumentError
from libdsec.protocol.spec import SandboxSpec

CONFIG = ImageConfig({"A": "1"}, "/srv", "nobody")


@pytest.fixture(params=["store", "fake"])
def images(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Images]:
    if request.param == "fake":
        yield FakeImages()
        return
    store = LocalStore(str(tmp_path / "state"))
    yield StoreImages(store, mounts_of(store, set()))
    store.close()


def mounts_of(store: LocalStore, held: set[str]) -> LayerMounts:
    """Mounts of nothing; `held` has the digests that a fork server would hold."""

    async def hold(key: str, descriptor: int) -> None:
        held.add(key)

    async def drop(key: str) -> None:
        held.remove(key)

    def mount(layer: LayerRecord) -> int:
        return os.open(layer.directory, os.O_PATH)

    return LayerMounts(hold, drop, store.catalogue.layer, mount=mount)


def request(tmp_path: Path, ref: str) -> ImageBuildRequest:
    (tmp_path / "tree").mkdir(exist_ok=True)
    (tmp_path / "tree" / "file").write_text(ref)
    return ImageBuildRequest(ref, f"dir:{tmp_path}/tree", config=CONFIG)


async def test_what_was_built_is_there_until_it_is_removed(images: Images, tmp_path: Path) -> None:
    before = images.list()
    seen: list[BuildProgress] = []
    built = await images.build(request(tmp_path, "one:v1"), seen.append)
    assert (built.ref, built.kind, built.config, len(built.layers)) == ("one:v1", "base", CONFIG, 1)
    assert seen[-1].stage == "publish"
    assert images.inspect("one:v1") == built
    assert await images.verify("one:v1") == built
    assert sorted(info.ref for info in images.list()) == sorted(["one:v1", *(info.ref for info in before)])
    composed = await images.compose(SandboxSpec("one:v1"))
    assert (composed.layers, composed.config) == ((built.layers[0].digest,), CONFIG)
    await images.remove("one:v1")
    assert images.list() == before
    with pytest.raises(ImageNotFoundError):
        await images.compose(SandboxSpec("one:v1"))


async def test_a_removed_image_is_mounted_no_more(tmp_path: Path) -> None:
    """An idle mount would keep its space on the disk."""
    store, held = LocalStore(str(tmp_path / "state")), set[str]()
    mounts = mounts_of(store, held)
    images = StoreImages(store, mounts)
    (layer,) = (await images.build(request(tmp_path, "one:v1"), lambda step: None)).layers
    await mounts.acquire(layer.digest)
    with pytest.raises(ConflictError):
        await images.remove("one:v1")
    await mounts.release(layer.digest)
    assert held == {layer.digest}
    await images.remove("one:v1")
    assert held == set()
    store.close()


async def test_a_name_is_published_once(images: Images, tmp_path: Path) -> None:
    built = await images.build(request(tmp_path, "one:v1"), lambda step: None)
    with pytest.raises(AlreadyExistsError):
        await images.build(request(tmp_path, "one:v1"), lambda step: None)
    assert images.inspect("one:v1") == built


async def test_what_is_not_there_is_not_found_by_anyone(images: Images) -> None:
    with pytest.raises(ImageNotFoundError):
        images.inspect("none:v1")
    for ask in (images.remove("none:v1"), images.verify("none:v1"), images.compose(SandboxSpec("none:v1"))):
        with pytest.raises(ImageNotFoundError):
            await ask


@pytest.mark.parametrize("bad", ["none", "UPPER:v1", ":v1", "a b:v1"])
async def test_what_is_no_name_is_refused(images: Images, bad: str) -> None:
    with pytest.raises(InvalidArgumentError):
        images.inspect(bad)
    with pytest.raises(InvalidArgumentError):
        await images.compose(SandboxSpec(bad))
