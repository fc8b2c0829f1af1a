"""Images whose data only the shared store has, pushed, exported and compared on a node that has never read them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from published import node, open_impatient
from stocked import stock

from dsec.edge import blocking
from dsec.edge.images import StoreImages
from dsec.store.loading.cache import is_whole
from dsec.store.loading.filling import Filling
from dsec.store.loading.loader import Loader
from dsec.store.local import LocalStore
from dsec.store.mounts import LayerMounts
from dsec.store.oci.push import push_image
from libdsec.protocol.environment import BuildProgress
from libdsec.protocol.errors import ImageNotFoundError
from libdsec.protocol.images import Change, ImagePushRequest

TEXT = "abc" * 200_000


class StopError(Exception):
    pass


def nothing() -> None:
    pass


async def nobody(*_: object) -> None: ...


async def stocked_store(tmp_path: Path) -> str:
    """A store with `a:1`, and `b:1` that has one file more."""
    url = str(tmp_path / "shared")
    with node(tmp_path / "maker", open_impatient(url)) as (local, store):
        stock(local, tmp_path / "scratch", "a:1", {"etc/one": TEXT})
        stock(local, tmp_path / "scratch", "b:1", {"etc/one": TEXT, "etc/two": "2"})
        for ref in ("a:1", "b:1"):
            await store.publish(ref, lambda _: None)
    return url


@asynccontextmanager
async def reader(tmp_path: Path) -> AsyncIterator[tuple[LocalStore, StoreImages]]:
    url = await stocked_store(tmp_path)
    with node(tmp_path / "reader", open_impatient(url)) as (local, store):
        loader = Loader(
            sources=store,
            locate=local.catalogue.layer,
            unless_kept=local.unless_kept,
            pending_path=str(tmp_path / "pending"),
            graves=local.graves_dir,
            way="prefetch",
        )
        with contextlib.closing(loader):
            yield local, StoreImages(local, LayerMounts(nobody, nobody, local.catalogue.layer), store, loader=loader)
        assert os.listdir(tmp_path / "reader" / "building") == []


async def test_a_push_fetches_what_it_has_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "PROGRESS_S", 0.001)
    told: list[BuildProgress] = []
    async with reader(tmp_path) as (local, images):
        request = ImagePushRequest("a:1", f"oci:{tmp_path}/layout:v1")
        first = await images.push(request, told.append)
        assert "fetch" in {news.stage for news in told}
        assert await images.push(request, told.append) == type(first)(first.destination, first.digest, 0)
        assert all(map(is_whole, local.catalogue.get("a:1").layers))


async def test_a_push_that_is_given_up_while_it_fetches(tmp_path: Path) -> None:
    def stop(news: BuildProgress) -> None:
        if news.stage == "fetch":
            raise StopError

    async with reader(tmp_path) as (local, images):
        await images.bring(("a:1",))
        request = ImagePushRequest("a:1", f"oci:{tmp_path}/layout:v1")
        with pytest.raises(StopError):
            push_image(local, request, stop, images._data.have_whole)
        assert "layout" not in os.listdir(tmp_path)
        await images.push(request, lambda _: None)


async def test_a_fetch_that_is_closed_before_it_can_say_that_all_has_come_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = Filling.fill

    async def slow_to_say(self: Filling) -> None:
        await fill(self)
        await asyncio.sleep(60)

    monkeypatch.setattr(Filling, "fill", slow_to_say)
    async with reader(tmp_path) as (local, images):
        await images.bring(("a:1",))
        await images.fetch("a:1", lambda _: None)
        assert all(map(is_whole, local.catalogue.get("a:1").layers))


async def test_an_export_fetches(tmp_path: Path) -> None:
    async with reader(tmp_path) as (_, images):
        await images.bring(("b:1",))
        content = b"".join(bytes(piece) for piece in images.export("b:1", nothing))
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            assert tar.getnames() == [".", "etc", "etc/one", "etc/two"]
            one = tar.extractfile("etc/one")
            assert one is not None
            assert one.read() == TEXT.encode()


async def test_a_comparison_fetches_what_it_has_to_compare(tmp_path: Path) -> None:
    async with reader(tmp_path) as (_, images):
        await images.bring(("a:1", "b:1"))
        assert list(images.diff("a:1", "b:1", nothing)) == [Change("/etc/two", "added", "file", 1)]
        with pytest.raises(ImageNotFoundError):
            await images.bring(("c:1",))
