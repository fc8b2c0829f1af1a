"""An image that is published by one node is the same image on another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from published import CHUNK, data_of, node, noise, objects_in, open_impatient, put_image, quiet, read_chunks

from dsec.store.records import LayerRecord
from dsec.store.verify import read_layer_file
from libdsec.protocol.errors import AlreadyExistsError, CapacityError, ImageNotFoundError, UnavailableError

DATA = noise(1) + bytes(3 * CHUNK) + noise(2) + b"text " * 100_000 + noise(1) + b"end"


def same_metadata(a: LayerRecord, b: LayerRecord) -> bool:
    return Path(a.metadata).read_bytes() == Path(b.metadata).read_bytes()


@pytest.fixture(params=["directory", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "shared") if request.param == "directory" else "memory:///"


async def test_it_comes_back_byte_for_byte(url: str, tmp_path: Path) -> None:
    objects = open_impatient(url)
    with node(tmp_path / "a", objects) as (local, shared), node(tmp_path / "b", objects) as (other, reader):
        image = put_image(local, "some/app:v1", DATA, noise(3, 1000))
        done = await shared.publish("some/app:v1", quiet)
        assert done.ref == "some/app:v1"
        assert done.store == objects.url
        assert done.chunks_new > 0
        found = await reader.resolve("some/app:v1")
        assert other.catalogue.get("some/app:v1") == found
        assert found.info() == image.info()
        for mine, theirs in zip(image.layers, found.layers, strict=True):
            assert same_metadata(theirs, mine)
            assert read_layer_file(theirs) == read_layer_file(mine)
            assert "data.erofs" not in os.listdir(theirs.directory)
            assert await read_chunks(reader, theirs) == data_of(mine)
            assert await read_chunks(reader, theirs, 0, 1) == data_of(mine)[:CHUNK]


async def test_publishing_again_sends_nothing(url: str, tmp_path: Path) -> None:
    objects = open_impatient(url)
    with node(tmp_path / "a", objects) as (local, shared):
        put_image(local, "app:v1", DATA)
        first = await shared.publish("app:v1", quiet)
        again = await shared.publish("app:v1", quiet)
        assert (again.bytes_sent, again.chunks_new) == (0, 0)
        assert again.chunks == first.chunks


async def test_a_chunk_is_stored_once(tmp_path: Path) -> None:
    objects = open_impatient(str(tmp_path / "shared"))
    with node(tmp_path / "a", objects) as (local, shared), node(tmp_path / "b", objects) as (other, reader):
        put_image(local, "app:v1", noise(1) + noise(2) + noise(1))
        first = await shared.publish("app:v1", quiet)
        assert first.chunks_new < first.chunks
        put_image(local, "app:v2", noise(2) + noise(1) + noise(5))
        second = await shared.publish("app:v2", quiet)
        assert second.chunks_new < second.chunks
        # what a node has resolved it knows as well as what it has published
        await reader.resolve("app:v2")
        image = put_image(other, "mine:v1", noise(5) + noise(2) + noise(1))
        third = await reader.publish("mine:v1", quiet)
        assert third.chunks_new < third.chunks
        found = await shared.resolve("mine:v1")
        assert await read_chunks(shared, found.layers[0]) == data_of(image.layers[0])


async def test_names_that_begin_alike_do_not_meet(url: str, tmp_path: Path) -> None:
    objects = open_impatient(url)
    with node(tmp_path / "a", objects) as (local, shared), node(tmp_path / "b", objects) as (_, reader):
        names = ("a:b", "a/b:c", "a/b/c:tags", "a:tags", "a:_tags")
        for number, name in enumerate(names):
            put_image(local, name, noise(number, 100))
            await shared.publish(name, quiet)
        for name in names:
            assert (await reader.resolve(name)).info() == local.catalogue.get(name).info()


async def test_what_a_store_has_is_listed_in_pages(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsec.store.remote.browse.PAGE", 2)
    objects = open_impatient(url)
    with node(tmp_path / "a", objects) as (local, shared):
        assert await shared.list(None) == ((), None)
        for name in ("b:1", "a/b:1", "a:2", "a:1"):
            put_image(local, name, name.encode())
            await shared.publish(name, quiet)
        await objects.put("names/broken/_tags/1", b"nonsense")
        await objects.put("names/stray", b"nonsense")
        listed, after = [], None
        for _ in range(3):
            page = await shared.list(after)
            listed += page.images
            after = page.next
        assert after is None
        assert listed == [local.catalogue.get(ref).info() for ref in ("a/b:1", "a:1", "a:2", "b:1")]


async def test_a_strange_file_in_a_directory_hides_no_image(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    objects = open_impatient(str(tmp_path / "store"))
    with node(tmp_path / "a", objects) as (local, shared):
        put_image(local, "app:1", noise(1))
        await shared.publish("app:1", quiet)
        for name in ("2\n", "\udcff", "\x1b[31m"):
            (tmp_path / f"store/names/app/_tags/{name}").write_text("?")
        (tmp_path / "store/names/line\nbreak/_tags").mkdir(parents=True)
        page = await shared.list(None)
        assert [image.ref for image in page.images] == ["app:1"]
        with pytest.raises(CapacityError):
            await objects.list("names", 0)


async def test_a_directory_that_has_gone_is_no_empty_store(tmp_path: Path) -> None:
    objects = open_impatient(str(tmp_path / "shared"))
    with node(tmp_path / "a", objects) as (local, shared):
        put_image(local, "app:v1", DATA)
        os.rename(tmp_path / "shared", tmp_path / "elsewhere")
        gone = f"the shared store {tmp_path}/shared is not there any more"
        with pytest.raises(UnavailableError, match=gone):
            await shared.publish("app:v1", quiet)
        with pytest.raises(UnavailableError, match=gone):
            await shared.resolve("other:v1")
        with pytest.raises(UnavailableError, match=gone):
            await objects.list("names", 10)
        assert not (tmp_path / "shared").exists()


async def test_a_name_is_published_once(url: str, tmp_path: Path) -> None:
    objects = open_impatient(url)
    with node(tmp_path / "a", objects) as (local, shared), node(tmp_path / "b", objects) as (other, second):
        put_image(local, "app:v1", noise(1), at=1.0)
        put_image(other, "app:v1", noise(1), at=2.0)
        await shared.publish("app:v1", quiet)
        same = await second.publish("app:v1", quiet)
        assert same.bytes_sent == 0
        other.remove("app:v1", lambda _: False)
        put_image(other, "app:v1", noise(2))
        with pytest.raises(AlreadyExistsError, match="another image of that name"):
            await second.publish("app:v1", quiet)


async def test_what_is_not_published_is_not_found(url: str, tmp_path: Path) -> None:
    with node(tmp_path / "a", open_impatient(url)) as (local, shared):
        with pytest.raises(ImageNotFoundError, match="none:v1"):
            await shared.resolve("none:v1")
        with pytest.raises(ImageNotFoundError):
            await shared.publish("none:v1", quiet)
        assert os.listdir(local.layers_dir) == []


async def test_those_who_resolve_at_once_wait_for_one(tmp_path: Path) -> None:
    objects = open_impatient(str(tmp_path / "shared"))
    with node(tmp_path / "a", objects) as (local, shared), node(tmp_path / "b", objects) as (_, reader):
        put_image(local, "app:v1", DATA)
        await shared.publish("app:v1", quiet)
        first = asyncio.ensure_future(reader.resolve("app:v1"))
        others = [asyncio.ensure_future(reader.resolve("app:v1")) for _ in range(20)]
        await asyncio.wait([first], timeout=0)
        first.cancel()  # another goes on in its place
        images = await asyncio.gather(*others)
        assert len({id(image) for image in images}) == 1
        missing = await asyncio.gather(*(reader.resolve("none:v1") for _ in range(5)), return_exceptions=True)
        assert {type(error) for error in missing} == {ImageNotFoundError}


async def test_a_directory_can_have_data_files_as_they_are(tmp_path: Path) -> None:
    objects = open_impatient(str(tmp_path / "shared"))
    with node(tmp_path / "a", objects, raw=True) as (local, shared):
        layer = put_image(local, "app:v1", noise(1) + bytes(40 * 1024 * 1024)).layers[0]
        assert shared.location(layer) is None
        await shared.publish("app:v1", quiet)
        where = shared.location(layer)
        assert where is not None
        assert data_of(msgspec.structs.replace(layer, data=where)) == data_of(layer)
        assert (await shared.publish("app:v1", quiet)).bytes_sent == 0
        assert not [name for name in objects_in(tmp_path / "shared") if "partial" in name]


async def test_a_publish_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    objects = open_impatient(str(tmp_path / "shared"))
    with node(tmp_path / "a", objects) as (local, shared), node(tmp_path / "b", objects) as (_, reader):
        layer = put_image(local, "app:v1", DATA).layers[0]
        await shared.publish("app:v1", quiet)
        there = objects_in(tmp_path / "shared")
        [pack] = [name for name in there if name.startswith("packs/")]
        # as if it had been killed after the pack, by a node that remembers nothing
        for name in there:
            if name != pack:
                (tmp_path / "shared" / name).unlink()
        local.remove("app:v1", lambda _: False)
        with local.catalogue.transaction() as database:
            database.execute("DELETE FROM store_packs")
        put_image(local, "app:v1", DATA)
        with pytest.raises(ImageNotFoundError):
            await reader.resolve("app:v1")
        again = await shared.publish("app:v1", quiet)
        assert again.chunks_new == 0
        assert objects_in(tmp_path / "shared").keys() == there.keys()
        found = await reader.resolve("app:v1")
        assert await read_chunks(reader, found.layers[0]) == data_of(layer)


async def test_a_pack_that_is_gone_is_sent_again(tmp_path: Path) -> None:
    objects = open_impatient(str(tmp_path / "shared"))
    with node(tmp_path / "a", objects) as (local, shared), node(tmp_path / "b", objects) as (_, reader):
        layer = put_image(local, "app:v1", DATA).layers[0]
        await shared.publish("app:v1", quiet)
        for name in objects_in(tmp_path / "shared"):
            if name.startswith("packs/"):
                (tmp_path / "shared" / name).unlink()
        put_image(local, "app:v2", DATA + noise(9))
        assert (await shared.publish("app:v2", quiet)).chunks_new > 1
        assert (await shared.publish("app:v1", quiet)).bytes_sent > 0
        found = await reader.resolve("app:v1")
        assert await read_chunks(reader, found.layers[0]) == data_of(layer)


PIECES = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(PIECES, st.integers(0, CHUNK - 1), st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_range_of_any_data_comes_back(tmp_path: Path, kinds: list[int], tail: int, data: st.DataObject) -> None:
    """Chunks of holes (0), of text (1) and of noise that repeats, in any order."""
    content = b"".join(bytes(CHUNK) if k == 0 else b"text" * (CHUNK // 4) if k == 1 else noise(k) for k in kinds)
    content += noise(9)[:tail]
    drawn = data.draw(st.tuples(st.integers(0, 20), st.integers(0, 20)))
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=tmp_path)))
        asyncio.run(_comes_back(base, content, drawn))


async def _comes_back(base: Path, content: bytes, drawn: tuple[int, int]) -> None:
    objects = open_impatient("memory:///")
    with node(base / "a", objects) as (local, shared), node(base / "b", objects) as (_, reader):
        layer = put_image(local, "app:v1", content).layers[0]
        await shared.publish("app:v1", quiet)
        again = await shared.publish("app:v1", quiet)
        assert (again.bytes_sent, again.chunks_new) == (0, 0)
        found = (await reader.resolve("app:v1")).layers[0]
        whole = data_of(layer)
        total = -(-len(whole) // CHUNK)
        first = min(drawn[0], total)
        count = min(drawn[1], total - first)
        assert await read_chunks(reader, found, first, count) == whole[first * CHUNK : (first + count) * CHUNK]
        assert await read_chunks(reader, found) == whole
