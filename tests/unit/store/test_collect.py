"""What garbage collection takes, and what it never takes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import noise, open_impatient, put_image, quiet

from dsec.edge.images import StoreImages
from dsec.store.catalogue import Catalogue
from dsec.store.collect import Plan, plan
from dsec.store.compose import Composition, compose
from dsec.store.local import LocalStore
from dsec.store.mounts import LayerMounts
from dsec.store.records import ImageRecord, LayerRecord
from dsec.store.remote.shared import SharedStore
from dsec.store.uses import JUST_USED_S, Uses
from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.errors import CapacityError, ImageNotFoundError, UnsupportedOperationError
from libdsec.protocol.spec import SandboxSpec

MIB = 1024 * 1024


def image(ref: str, *layers: str) -> ImageRecord:
    return ImageRecord(ref, "base", tuple(LayerRecord(d, "", "", 0, 0, 0, "") for d in layers), ImageConfig(), 0.0)


def planned(
    images: list[ImageRecord], used: dict[str, float], keep: int, *, stays: tuple[str, ...] = (), size: int = 10
) -> Plan:
    sizes = {layer.digest: size for each in images for layer in each.layers}
    return plan(images, sizes, used, lambda image: image.ref not in stays, keep, 100.0)


def test_the_longest_unused_goes_first_and_no_more_than_must() -> None:
    images = [image("a:1", "a"), image("b:1", "b"), image("c:1", "c")]
    found = planned(images, {"a": 3.0, "b": 1.0, "c": 2.0}, 10)
    assert found.images == ("b:1", "c:1")
    assert [each.layer for each in found.collected] == ["b", "c"]
    assert found.kept_bytes == 10
    assert planned(images, {}, 30) == Plan((), (), 30)
    assert planned(images, {}, 0).kept_bytes == 0


def test_a_layer_goes_when_all_its_images_go() -> None:
    images = [image("a:1", "base", "a"), image("b:1", "base", "b"), image("c:1", "base", "c")]
    found = planned(images, {"base": 9.0, "a": 1.0, "b": 2.0, "c": 3.0}, 0, stays=("c:1",))
    assert [each.layer for each in found.collected] == ["a", "b"]
    assert found.kept_bytes == 20
    everything = planned(images, {"base": 9.0, "a": 1.0, "b": 2.0, "c": 3.0}, 0)
    [base] = [each for each in everything.collected if each.layer == "base"]
    assert base.refs == ("a:1", "b:1", "c:1")


def test_a_name_that_frees_nothing_stays() -> None:
    images = [image("a:1", "x"), image("b:1", "x"), image("c:1", "c")]
    found = planned(images, {"x": 1.0, "c": 2.0}, 0, stays=("b:1",))
    assert found.images == ("c:1",)


@given(
    st.lists(st.sets(st.sampled_from("vwxyz"), min_size=1), min_size=1, max_size=6),
    st.sets(st.integers(0, 5)),
    st.integers(0, 60),
    st.dictionaries(st.sampled_from("vwxyz"), st.floats(0, 100)),
)
def test_what_may_not_go_keeps_its_layers(
    stacks: list[set[str]], stay: set[int], keep: int, used: dict[str, float]
) -> None:
    images = [image(f"i:{number}", *sorted(layers)) for number, layers in enumerate(stacks)]
    found = planned(images, used, keep, stays=tuple(f"i:{number}" for number in stay))
    gone = {each.layer for each in found.collected}
    left = {each.ref: {layer.digest for layer in each.layers} for each in images if each.ref not in found.images}
    assert not {f"i:{number}" for number in stay} & set(found.images)
    for layers in left.values():
        assert not layers & gone
    everything = {layer for stack in stacks for layer in stack}
    assert found.kept_bytes == 10 * (len(everything) - len(gone))
    for each in found.collected:
        assert set(each.refs) <= set(found.images)


@dataclass
class Node:
    local: LocalStore
    shared: SharedStore
    mounts: LayerMounts
    images: StoreImages
    directory: Path
    dropped: list[str]
    clock: list[float] = field(default_factory=lambda: [1000.0])

    async def publish(self, ref: str, seed: int) -> ImageRecord:
        made = put_image(self.local, ref, noise(seed, MIB))
        await self.shared.publish(ref, quiet)
        return made

    async def use(self, ref: str) -> None:
        self.clock[0] += 10
        await self.images.compose(SandboxSpec(image=ref))

    def later(self) -> None:
        self.clock[0] += 1000

    def names(self) -> list[str]:
        return [each.ref for each in self.images.list()]


@contextlib.asynccontextmanager
async def a_node(tmp_path: Path) -> AsyncIterator[Node]:
    dropped: list[str] = []

    async def hold(key: str, descriptor: int) -> None:
        """Nothing is held."""

    async def drop(key: str) -> None:
        dropped.append(key)

    clock = [1000.0]
    objects = open_impatient(str(tmp_path / "shared"))
    with (
        contextlib.closing(LocalStore(str(tmp_path / "state"))) as local,
        contextlib.closing(SharedStore(objects, local)) as shared,
    ):
        mounts = LayerMounts(hold, drop, local.catalogue.layer, mount=lambda _: os.open("/dev/null", os.O_RDONLY))
        images = StoreImages(local, mounts, shared, limit_bytes=2 * MIB, now=lambda: clock[0])
        yield Node(local, shared, mounts, images, tmp_path / "shared", dropped, clock)


async def test_only_what_the_store_has_is_forgotten_and_comes_again(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        await node.publish("a:1", 1)
        put_image(node.local, "mine:1", noise(2, MIB))
        node.later()
        tried = await node.images.collect(0, True)
        assert [each.refs for each in tried.collected] == [("a:1",)]
        assert node.names() == ["a:1", "mine:1"]
        done = await node.images.collect(0, False)
        assert done == tried
        assert node.names() == ["mine:1"]
        await node.use("a:1")
        assert node.names() == ["a:1", "mine:1"]
        with pytest.raises(ImageNotFoundError):
            await node.use("none:1")


async def test_what_a_sandbox_has_stays(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        layer = (await node.publish("a:1", 1)).layers[0].digest
        await node.mounts.acquire(layer)
        node.later()
        assert (await node.images.collect(0, False)).collected == ()
        await node.mounts.release(layer)
        assert [each.layer for each in (await node.images.collect(0, False)).collected] == [layer]
        assert node.dropped == [layer]


async def test_what_was_just_chosen_stays(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        await node.publish("a:1", 1)
        await node.use("a:1")
        assert (await node.images.collect(0, False)).collected == ()
        node.clock[0] += JUST_USED_S
        assert len((await node.images.collect(0, False)).collected) == 1


async def test_pinned_images_stay_until_they_are_let_go(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        await node.publish("a:1", 1)
        await node.images.pin("a:1", True)
        await node.images.pin("a:1", True)
        node.later()
        assert (await node.images.collect(0, False)).collected == ()
        await node.images.pin("a:1", False)
        await node.images.pin("a:1", False)
        assert len((await node.images.collect(0, False)).collected) == 1
        # what is only in the store comes here to stay
        await node.images.pin("a:1", True)
        assert node.names() == ["a:1"]
        with pytest.raises(ImageNotFoundError):
            await node.images.pin("none:1", True)


@pytest.mark.parametrize("lost", ["names/a/*/*", "layers/*/layer", "layers/*/metadata.zst", "packs/*/*"])
async def test_an_image_that_the_store_has_lost_is_not_forgotten(tmp_path: Path, lost: str) -> None:
    async with a_node(tmp_path) as node:
        await node.publish("a:1", 1)
        next(node.directory.glob(lost)).unlink()
        await node.publish("b:1", 2)
        node.later()
        tried = await node.images.collect(0, True)
        assert node.names() == ["a:1", "b:1"]
        done = await node.images.collect(0, False)
        assert done == tried
        assert [each.refs for each in done.collected] == [("b:1",)]
        assert done.kept_bytes >= MIB
        assert node.names() == ["a:1"]


async def test_a_sandbox_that_comes_in_the_middle_waits_and_has_its_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path) as node:
        layer = (await node.publish("a:1", 1)).layers[0].digest
        await node.use("a:1")
        node.later()
        loop = asyncio.get_running_loop()
        coming: list[asyncio.Future[None]] = []
        remove = node.local.remove

        def slow_remove(*args: object) -> tuple[str, ...]:
            started = asyncio.run_coroutine_threadsafe(begin(), loop)
            started.result(10)
            return remove(*args)  # type: ignore[arg-type]

        async def begin() -> None:
            coming.append(asyncio.ensure_future(node.use("a:1")))
            await asyncio.sleep(0)

        monkeypatch.setattr(node.local, "remove", slow_remove)
        assert len((await node.images.collect(0, False)).collected) == 1
        await asyncio.wait_for(coming[0], 10)
        assert node.names() == ["a:1"]
        await node.mounts.acquire(layer)
        await node.mounts.release(layer)


async def test_a_sandbox_that_comes_between_two_images_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path) as node:
        for number in (1, 2):
            await node.publish(f"i:{number}", number)
            await node.use(f"i:{number}")
        node.later()
        layer = node.local.catalogue.get("i:1").layers[0].digest
        has = node.shared.has
        came: list[str] = []

        async def come(image: ImageRecord) -> bool:
            if image.ref == "i:2":
                assert node.names() == ["i:2"]
                await node.use("i:1")
                await node.mounts.acquire(layer)
                came.append(image.ref)
            return await has(image)

        monkeypatch.setattr(node.shared, "has", come)
        await node.images.collect(0, False)
        assert came == ["i:2"]
        assert node.names() == ["i:1"]
        await node.mounts.release(layer)


async def test_an_image_that_is_removed_while_it_is_composed_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path) as node:
        await node.publish("a:1", 1)
        tool = put_image(node.local, "other:1", noise(2, MIB))
        node.local.publish_image(msgspec.structs.replace(tool, ref="tool:1", kind="toolkit"))
        composed: list[str] = []

        def remove_meanwhile(catalogue: Catalogue, spec: SandboxSpec) -> Composition:
            found = compose(catalogue, spec)
            if not composed:
                asyncio.run_coroutine_threadsafe(node.images.remove("a:1"), loop).result(10)
            composed.append(spec.image)
            return found

        loop = asyncio.get_running_loop()
        monkeypatch.setattr("dsec.edge.images.compose", remove_meanwhile)
        found = await node.images.compose(SandboxSpec(image="a:1", toolkits=("tool:1",)))
        assert composed == ["a:1", "a:1"]
        for digest in found.layers:
            assert node.local.catalogue.layer(digest).digest == digest


async def test_beyond_the_limit_the_node_collects_by_itself(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        for number in range(4):
            await node.publish(f"i:{number}", number)
        for number in (2, 0, 3, 1):
            await node.use(f"i:{number}")
        node.later()
        await node.images.tend()
        assert node.names() == ["i:1"]  # a layer is a little more than a MiB with its metadata
        await node.images.tend()
        assert node.names() == ["i:1"]


async def test_uses_and_pins_outlive_the_process(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        layer = (await node.publish("a:1", 1)).layers[0].digest
        await node.use("a:1")
        at = node.clock[0]
        await node.images.pin("a:1", True)
        await node.images.tend()
    async with a_node(tmp_path) as node:
        uses = Uses(node.local.catalogue, lambda: 0.0)
        assert uses.last() == {layer: at}
        assert uses.pinned() == {"a:1"}
        await node.images.remove("a:1")
        assert uses.pinned() == frozenset()
        uses.note(["sha256:other"])
        uses.write()
        assert uses.last() == {}


async def test_a_node_without_a_store(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        put_image(node.local, "a:1", b"x")
        alone = StoreImages(node.local, node.mounts)
        with pytest.raises(UnsupportedOperationError, match="DSEC_STORE"):
            await alone.publish("a:1", quiet)
        assert (await alone.collect(0, False)).collected == ()
        with pytest.raises(ImageNotFoundError):
            await alone.compose(SandboxSpec(image="b:1"))
        await alone.tend()


async def test_an_image_that_goes_between_its_coming_and_its_choice_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path) as node:
        await node.publish("a:1", 1)
        bring = node.shared.bring
        calls = 0

        async def bring_and_lose(refs: tuple[str, ...]) -> None:
            nonlocal calls
            calls += 1
            await bring(refs)
            if calls == 1:
                node.local.remove("a:1", node.mounts.in_use)

        monkeypatch.setattr(node.shared, "bring", bring_and_lose)
        await node.use("a:1")
        assert (node.names(), calls) == (["a:1"], 2)


async def test_a_full_disk_does_not_keep_the_node_from_collecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path) as node:
        for number in range(3):
            await node.publish(f"i:{number}", number)
            await node.use(f"i:{number}")
        node.later()

        def full() -> None:
            raise CapacityError("cannot write the catalogue: database or disk is full")

        monkeypatch.setattr(node.images.uses, "write", full)
        await node.images.tend()
        assert node.names() == ["i:2"]
