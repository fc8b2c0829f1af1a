"""Images read out of a node: exported, compared, pushed; by clients that do not read, give up, and go away."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from dsec.edge import blocking
from dsec.edge.image_streams import MAX_AT_ONCE
from dsec.edge.images import StoreImages
from dsec.store.build import build_layer
from dsec.store.local import LocalStore
from dsec.store.mounts import LayerMounts
from dsec.store.records import ImageRecord
from dsec.store.sources import BytesContent, Entry, MemorySource
from dsec.store.tree import Node
from dsec.testing.fake_node import FakeNode, fake_node
from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.errors import (
    CapacityError,
    DeadlineExceededError,
    ImageNotFoundError,
    IntegrityError,
    InvalidArgumentError,
)
from libdsec.protocol.frames import WINDOW, Kind
from libdsec.protocol.images import Change

REG = stat.S_IFREG | 0o644
LARGE = os.urandom(3 << 20)


class StoreNode:
    """A node with a store of its own that has `small:1` and `large:1`."""

    def __init__(self, node: FakeNode, store: LocalStore) -> None:
        self.node = node
        self.store = store
        self.client = node.client

    def publish(self, ref: str, files: dict[bytes, bytes]) -> ImageRecord:
        entries = [Entry(path, Node(REG), BytesContent(content)) for path, content in files.items()]
        with self.store.build_directory() as directory:
            layer = build_layer(MemorySource(entries), directory, "layer")
            return self.store.publish(
                lambda record: ImageRecord(ref, "base", (record,), ImageConfig(), 1.0), layer, f"build of {ref}"
            )

    async def is_at_rest(self) -> None:
        """Nothing is read out and nothing kept any more."""
        async with asyncio.timeout(20):
            while self.node.edge.image_streams or self.store._kept:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def store_node(run_dir: str, tmp_path: Path) -> AsyncIterator[StoreNode]:
    store = LocalStore(str(tmp_path / "state"))

    async def nothing(*_: object) -> None: ...

    async with fake_node(run_dir) as node:
        node.edge.images = StoreImages(store, LayerMounts(nothing, nothing, store.catalogue.layer))
        made = StoreNode(node, store)
        made.publish("small:1", {b"f": b"small"})
        made.publish("large:1", {b"f": b"other", b"large": LARGE})
        yield made
        await made.is_at_rest()
    assert os.listdir(tmp_path / "state" / "building") == []
    store.close()


async def test_an_export_is_a_tar(run_dir: str, tmp_path: Path) -> None:
    async with store_node(run_dir, tmp_path) as node, node.client() as client:
        call = client.start("image.export", ref="large:1")
        assert await call.answer() == {}
        with tarfile.open(fileobj=io.BytesIO(call.stdout)) as tar:
            assert tar.getnames() == [".", "f", "large"]
            large = tar.extractfile("large")
            assert large is not None
            assert large.read() == LARGE


async def test_a_reader_that_rests_is_waited_for_and_may_give_up(run_dir: str, tmp_path: Path) -> None:
    async with store_node(run_dir, tmp_path) as node, node.client() as client:
        call = client.start("image.export", ref="large:1")
        received = 0
        while received < WINDOW:
            received += len((await call.next()).payload)
        assert received == WINDOW
        call.send(Kind.CANCEL)
        with pytest.raises(DeadlineExceededError):
            await call.answer()


async def test_a_reader_that_goes_away_leaves_nothing_behind(run_dir: str, tmp_path: Path) -> None:
    async with store_node(run_dir, tmp_path) as node:
        async with node.client() as client:
            await client.start("image.export", ref="large:1").next()
        await node.is_at_rest()


async def test_an_image_may_be_removed_while_it_is_read_out(run_dir: str, tmp_path: Path) -> None:
    async with store_node(run_dir, tmp_path) as node, node.client() as client:
        call = client.start("image.export", ref="large:1")
        first = await call.next()
        await client.call("image.remove", ref="large:1")
        call.grant(2, len(first.payload))
        assert await call.answer() == {}
        assert len(first.payload) + len(call.stdout) > len(LARGE)
        await node.is_at_rest()
        assert len(os.listdir(tmp_path / "state" / "layers")) == 1


async def test_so_many_at_once_and_no_more(run_dir: str, tmp_path: Path) -> None:
    async with store_node(run_dir, tmp_path) as node, node.client() as client:
        calls = [client.start("image.export", ref="large:1") for _ in range(MAX_AT_ONCE)]
        for call in calls:
            await call.next()
        with pytest.raises(CapacityError, match=str(MAX_AT_ONCE)):
            await client.call("image.diff", a="small:1", b="large:1")
        # a thread is free for others all the same
        assert (await client.call("image.verify", ref="small:1"))["ref"] == "small:1"
        for call in calls:
            call.send(Kind.CANCEL)
            with pytest.raises(DeadlineExceededError):
                await call.answer(consume=False)
        await client.call("image.diff", a="small:1", b="large:1")


def damage(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(2 << 20)
        file.write(b"damage")


async def test_damage_ends_an_export_with_an_error(run_dir: str, tmp_path: Path) -> None:
    async with store_node(run_dir, tmp_path) as node, node.client() as client:
        (layer,) = node.store.catalogue.get("large:1").layers
        damage(layer.data)
        with pytest.raises(IntegrityError, match="chunk 8"):
            await client.call("image.export", ref="large:1")


async def test_a_diff_comes_in_arrays_and_is_counted(run_dir: str, tmp_path: Path) -> None:
    async with store_node(run_dir, tmp_path) as node, node.client() as client:
        names = {b"name-that-is-not-short/%05d" % number: b"" for number in range(3000)}
        node.publish("many:1", {b"f": b"small", **names})
        call = client.start("image.diff", a="small:1", b="many:1")
        changes: list[Change] = []
        while (frame := await call.next()).kind is Kind.DATA:
            assert len(frame.payload) < 64 * 1024
            changes += msgspec.msgpack.decode(frame.payload, type=tuple[Change, ...])
            call.grant(2, len(frame.payload))
        assert msgspec.msgpack.decode(frame.payload) == {"added": 3001, "changed": 0, "removed": 0}
        assert changes[0] == Change("/name-that-is-not-short", "added", "directory")
        assert [change.path for change in changes[1:]] == sorted("/" + name.decode() for name in names)


async def test_a_push_tells_how_far_it_is(run_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "PROGRESS_S", 0.001)
    async with store_node(run_dir, tmp_path) as node, node.client() as client:
        call = client.start("image.push", ref="large:1", destination=f"oci:{tmp_path}/layout")
        pushed = await call.answer()
        assert {event["stage"] for event in call.events} == {"pack", "send"}
        assert pushed["bytes_sent"] > len(LARGE)
        again = await client.call("image.push", ref="large:1", destination=f"oci:{tmp_path}/layout:other")
        assert (again["digest"], again["bytes_sent"]) == (pushed["digest"], 0)


async def test_a_push_that_is_given_up_leaves_nothing(run_dir: str, tmp_path: Path) -> None:
    async with store_node(run_dir, tmp_path) as node, node.client() as client:
        node.publish("larger:1", {b"large": os.urandom(16 << 20)})
        call = client.start("image.push", ref="larger:1", destination=f"oci:{tmp_path}/layout")
        assert (await call.next()).kind is Kind.EVENT
        call.send(Kind.CANCEL)
        with pytest.raises(DeadlineExceededError):
            await call.answer()
        assert not (tmp_path / "layout").exists()


async def test_what_is_asked_wrongly_is_refused(run_dir: str, tmp_path: Path) -> None:
    async with store_node(run_dir, tmp_path) as node, node.client() as client:
        for method, args in (("image.export", {"ref": "n:1"}), ("image.diff", {"a": "small:1", "b": "n:1"})):
            with pytest.raises(ImageNotFoundError):
                await client.call(method, **args)
        for place in ("docker-archive:/x", "oci:x", "nonsense", "docker://localhost:1/a@sha256:" + "0" * 64):
            with pytest.raises(InvalidArgumentError):
                await client.call("image.push", ref="small:1", destination=place)
        with pytest.raises(InvalidArgumentError):
            await client.call("image.export", ref="small")


async def test_a_history_says_what_made_each_layer(run_dir: str, tmp_path: Path) -> None:
    async with store_node(run_dir, tmp_path) as node, node.client() as client:
        layers = node.store.catalogue.get("small:1").layers + node.store.catalogue.get("large:1").layers
        node.store.publish_image(ImageRecord("both:1", "base", layers, ImageConfig(), 9.0), ("not", "news"))
        told = await client.call("image.history", ref="both:1")
        assert [(entry["made_by"], entry["ref"], entry["created_at"]) for entry in told["entries"]] == [
            ("build of small:1", "small:1", 1.0),
            ("build of large:1", "large:1", 1.0),
        ]
        await client.call("image.remove", ref="small:1")
        assert len((await client.call("image.history", ref="both:1"))["entries"]) == 2
