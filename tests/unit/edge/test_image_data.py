"""Data that the shared store has too is evicted, the longest unused first, where nobody uses it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsec.edge.image_data import ImageData
from dsec.store.build import build_layer
from dsec.store.loading.local import WholeLayers
from dsec.store.local import LocalStore
from dsec.store.records import ImageRecord, LayerRecord
from dsec.store.sources import DirectorySource
from libdsec.protocol.environment import ImageConfig

SIZE = 64 * 1024


class Loader(WholeLayers):
    def __init__(self) -> None:
        self.mounted: set[str] = set()
        self.evicted: list[str] = []

    def evict(self, layer: LayerRecord) -> int | None:
        if layer.digest in self.mounted:
            return None
        Path(layer.data).unlink()
        self.evicted.append(layer.digest)
        return SIZE


class Node:
    """Four layers, `a` used longest ago; `d` was made here."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.layers = {}
        for name in "abcd":
            home = directory / name
            home.mkdir()
            (home / "data.erofs").write_bytes(bytes(range(256)) * (SIZE // 256))
            if name != "d":
                (home / "remote.json").write_text("{}")
            self.layers[name] = LayerRecord(
                name, str(home / "metadata.erofs"), str(home / "data.erofs"), 1, SIZE, 1, "0" * 64
            )
        images = [ImageRecord(f"{name}:1", "base", (layer,), ImageConfig(), 0.0) for name, layer in self.layers.items()]
        self.kept: set[str] = set()
        self.recent: set[str] = set()
        self.loader = Loader()
        catalogue = SimpleNamespace(list=lambda: tuple(images), get=lambda ref: images["abcd".index(ref[0])])
        mounts = SimpleNamespace(forget=self.forget, users=lambda digest: int(digest in self.kept))
        uses = SimpleNamespace(
            last=lambda: {name: float(at) for at, name in enumerate("dabc")},
            just_used=lambda digest: digest in self.recent,
            pinned=lambda: frozenset({"b:1"}),
        )
        store: Any = SimpleNamespace(catalogue=catalogue)
        self.data = ImageData(store, mounts, uses, self.loader, limit_bytes=limit_bytes)  # type: ignore[arg-type]

    async def forget(self, digest: str) -> bool:
        return digest not in self.kept


def publish(store: LocalStore, directory: Path) -> ImageRecord:
    (directory / "tree").mkdir(exist_ok=True)
    build = build_layer(DirectorySource(directory / "tree"), directory, "built")
    return store.publish(lambda layer: ImageRecord("one:1", "base", (layer,), ImageConfig(), 0.0), build)


async def test_an_image_that_is_removed_while_it_is_fetched_or_checked_comes_whole(tmp_path: Path) -> None:
    with contextlib.closing(LocalStore(str(tmp_path / "state"))) as store:

        class Removing(WholeLayers):
            def remove(self, layer: LayerRecord) -> None:
                store.remove("one:1", lambda _: False)
                assert Path(layer.data).exists()

            def fetch_all(self, layers: Sequence[LayerRecord], progress: Callable[[int], None]) -> None:
                self.remove(layers[0])

            def verify(self, layer: LayerRecord) -> None:
                self.remove(layer)

        uses: Any = SimpleNamespace(note=lambda digests: None)
        mounts: Any = None
        data = ImageData(store, mounts, uses, Removing())
        for work in (partial(data.fetch, "one:1", print), partial(data.verify, "one:1")):
            image = publish(store, tmp_path)
            assert await work() == image.info()
            assert os.listdir(store.layers_dir) == []


@pytest.mark.parametrize(
    ("limit", "gone"), [(0, ""), (3 * SIZE, ""), (3 * SIZE - 1, "a"), (SIZE, "ab"), (SIZE - 1, "abc"), (1, "abc")]
)
async def test_only_as_much_goes_as_must(tmp_path: Path, limit: int, gone: str) -> None:
    node = Node(tmp_path, limit)
    assert await node.data.evict() == len(gone) * SIZE
    assert node.loader.evicted == list(gone)
    assert await node.data.evict() == 0


async def test_what_is_used_stays(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    node.kept, node.recent, node.loader.mounted = {"a"}, {"b"}, {"c"}
    assert await node.data.evict() == 0
    node.kept, node.recent = set(), set()
    assert await node.data.evict() == 2 * SIZE
    assert node.loader.evicted == ["a", "b"]


async def test_what_is_counted(tmp_path: Path) -> None:
    node = Node(tmp_path, SIZE)
    node.kept = {"b"}
    every = await node.data.stats("")
    assert [layer.layer for layer in every.layers] == list("abcd")
    assert (every.cache_bytes, every.cache_limit) == (3 * SIZE, SIZE)
    (one,) = (await node.data.stats("b:1")).layers
    assert (one.layer, one.refs, one.in_use, one.pinned, one.last_used_at) == ("b", ("b:1",), 1, True, 2.0)
