"""What an edge may expect of its images (`dsec.edge.images.Images`): the node's own store, and the fake that ships."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.edge import blocking
from dsec.edge.images import Images, StoreImages
from dsec.store.local import LocalStore
from dsec.store.mounts import LayerMounts
from dsec.store.records import LayerRecord
from dsec.testing.fake_images import FakeImages
from libdsec.protocol.environment import BuildProgress, ImageBuildRequest, ImageConfig
from libdsec.protocol.errors import AlreadyExistsError, ConflictError, ImageNotFoundError, InvalidArgumentError
from libdsec.protocol.images import ImagePushRequest
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


@pytest.fixture
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is over soon, too."""
    monkeypatch.setattr(blocking, "PROGRESS_S", 0.001)


@pytest.mark.usefixtures("told_at_once")
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


async def test_what_is_read_out_is_what_was_built(images: Images, tmp_path: Path) -> None:
    for ref in ("one:v1", "two:v1"):
        await images.build(request(tmp_path, ref), lambda step: None)
    ticks: list[None] = []

    def tick() -> None:
        ticks.append(None)

    with tarfile.open(fileobj=io.BytesIO(b"".join(bytes(piece) for piece in images.export("one:v1", tick)))) as tar:
        assert all(member.name in (".", "file") for member in tar)
    assert [(change.kind, change.path) for change in images.diff("one:v1", "two:v1", tick)] == [("changed", "/file")]
    assert list(images.diff("one:v1", "one:v1", tick)) == []
    assert ticks
    (entry,) = images.history("one:v1").entries
    assert entry.ref == "one:v1"
    assert entry.made_by


@pytest.mark.usefixtures("told_at_once")
async def test_a_push_says_where_it_went(images: Images, tmp_path: Path) -> None:
    await images.build(request(tmp_path, "one:v1"), lambda step: None)
    seen: list[BuildProgress] = []
    pushed = await images.push(ImagePushRequest("one:v1", f"oci:{tmp_path}/layout"), seen.append)
    assert pushed.destination == f"oci:{tmp_path}/layout"
    assert pushed.digest.startswith("sha256:")
    assert pushed.bytes_sent > 0
    assert seen[-1].stage == "send"


async def test_what_is_not_there_is_not_read_out(images: Images, tmp_path: Path) -> None:
    def tick() -> None: ...

    with pytest.raises(ImageNotFoundError):
        list(images.export("none:v1", tick))
    with pytest.raises(ImageNotFoundError):
        list(images.diff("none:v1", "none:v1", tick))
    with pytest.raises(ImageNotFoundError):
        images.history("none:v1")
    with pytest.raises(ImageNotFoundError):
        await images.push(ImagePushRequest("none:v1", f"oci:{tmp_path}/layout"), lambda step: None)
