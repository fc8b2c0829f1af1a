"""What DSec asks of a shared store: a directory, one in memory, and every one that DSEC_TEST_STORES names.

    DSEC_TEST_STORES="s3://bucket/tests az://container/tests" pytest tests/conformance/test_shared_stores.py

Their settings are those of a node, in the environment (docs/layers.md). Every test writes below a name of its own,
and takes it away.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import obstore
import pytest
from store_proxy import Proxy

from dsec.edge.images import StoreImages
from dsec.store.digest import chunk_digest
from dsec.store.mounts import LayerMounts
from dsec.store.records import LayerRecord
from dsec.store.remote.known import pieces
from dsec.store.remote.objects import Objects, Patience
from dsec.store.remote.opening import open_store
from dsec.store.verify import read_layer_file
from libdsec.protocol.errors import (
    AlreadyExistsError,
    CapacityError,
    DSecError,
    ImageNotFoundError,
    IntegrityError,
    PermissionDeniedError,
    UnavailableError,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "store"))

from published import CHUNK, data_of, node, noise, put_image, quiet, read_chunks

NAMED = os.environ.get("DSEC_TEST_STORES", "").split()
UNNAMED = pytest.mark.skip(reason="DSEC_TEST_STORES names no store (s3://bucket/prefix, az://…, gs://…)")
CLOUDS = {
    "s3": (("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"), ("AWS_SECRET_ACCESS_KEY",)),
    "az": (("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"), ("AZURE_STORAGE_ACCOUNT_KEY",)),
    "gs": (("GOOGLE_BASE_URL",), ("GOOGLE_BEARER_TOKEN",)),
}
"""By scheme: where the endpoint stands, and what is secret."""
WRONG = "d3Jvbmdfd3JvbmdfV1JPTkc="
"""A secret that is none, also where one must be base64."""

STRICT = Patience(attempt_s=1.0, bytes_per_s=1 << 24, attempts=2, backoff_s=0.05)
DATA = noise(1) + bytes(3 * CHUNK) + noise(2) + b"text " * 100_000 + noise(1) + b"end"
LARGE = noise(3, 9 * 1024 * 1024) + noise(4, 1000)
"""More than one request for chunks."""


def metadata_of(layer: LayerRecord) -> bytes:
    return Path(layer.metadata).read_bytes()


@dataclass
class Subject:
    url: str
    open: Callable[[], Objects]
    """As another node would; one in memory is the same for all."""


async def clean(objects: Objects) -> None:
    store = objects._store
    for _ in range(2):  # whoever was cut off may have written since
        found = [each["path"] for some in obstore.list(store) for each in some]
        await asyncio.gather(*(obstore.delete_async(store, path) for path in found))


@pytest.fixture(
    params=["directory", "memory", *(NAMED or [pytest.param("named", marks=UNNAMED)])],
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.asynccontextmanager
async def subject(kind: str, tmp_path: Path) -> AsyncIterator[Subject]:
    if kind == "directory":
        (tmp_path / "shared").mkdir()
        yield Subject(str(tmp_path / "shared"), lambda: open_store(str(tmp_path / "shared")))
    elif kind == "memory":
        objects = open_store("memory:///")
        yield Subject(objects.url, lambda: objects)
    else:
        url = f"{kind.rstrip('/')}/{secrets.token_hex(6)}"
        own = open_store(url)
        try:
            yield Subject(url, lambda: open_store(url))
        finally:
            await clean(own)


async def test_an_image_goes_there_and_comes_back(kind: str, tmp_path: Path) -> None:
    async with subject(kind, tmp_path) as store:
        with node(tmp_path / "a", store.open()) as (local, shared), node(tmp_path / "b", store.open()) as (_, reader):
            image = put_image(local, "some/app:v1.2_3", DATA, LARGE)
            first = await shared.publish("some/app:v1.2_3", quiet)
            assert first.chunks_new > 0
            again = await shared.publish("some/app:v1.2_3", quiet)
            assert (again.bytes_sent, again.chunks_new, again.chunks) == (0, 0, first.chunks)
            found = await reader.resolve("some/app:v1.2_3")
            assert found.info() == image.info()
            for mine, theirs in zip(image.layers, found.layers, strict=True):
                content = await read_chunks(reader, theirs)
                digests = pieces(read_layer_file(theirs).chunk_digests)
                assert [chunk_digest(content[at * CHUNK : (at + 1) * CHUNK]) for at in range(len(digests))] == digests
                assert content == data_of(mine)
                assert metadata_of(theirs) == metadata_of(mine)


async def test_a_name_is_given_once(kind: str, tmp_path: Path) -> None:
    async with subject(kind, tmp_path) as store:
        with (
            node(tmp_path / "a", store.open()) as (local, shared),
            node(tmp_path / "b", store.open()) as (other, second),
        ):
            put_image(local, "app:1", noise(1))
            put_image(other, "app:1", noise(2))
            await shared.publish("app:1", quiet)
            with pytest.raises(AlreadyExistsError, match="another image of that name"):
                await second.publish("app:1", quiet)
            for number in range(5):
                ref = f"race:{number}"
                put_image(local, ref, noise(10 + number))
                put_image(other, ref, noise(20 + number))
                done = await asyncio.gather(
                    shared.publish(ref, quiet), second.publish(ref, quiet), return_exceptions=True
                )
                assert sorted(type(each).__name__ for each in done) == ["AlreadyExistsError", "ImagePublished"]
                winner, loser = (local, other) if not isinstance(done[0], Exception) else (other, local)
                loser.remove(ref, lambda _: False)
                won = winner.catalogue.get(ref).layers
                assert (await (second if loser is other else shared).resolve(ref)).layers[0].digest == won[0].digest


async def test_of_many_writers_one_creates(kind: str, tmp_path: Path) -> None:
    async with subject(kind, tmp_path) as store:
        objects = store.open()
        for number in range(5):
            path = f"names/race/_tags/{number}"
            done = await asyncio.gather(*(objects.put(path, b"%d" % writer) for writer in range(10)))
            assert done.count(True) == 1
            assert await objects.get(path, 10) == b"%d" % done.index(True)
        assert await objects.put("names/race/_tags/0", b"new", replace=True)
        assert await objects.get("names/race/_tags/0", 10) == b"new"


async def test_what_is_there_is_listed(kind: str, tmp_path: Path) -> None:
    async with subject(kind, tmp_path) as store:
        objects = store.open()
        with node(tmp_path / "a", objects) as (local, shared):
            assert await shared.list(None) == ((), None)
            for ref in ("b:1", "a/b:1.0_x", "a:1"):
                put_image(local, ref, ref.encode())
                await shared.publish(ref, quiet)
            page = await shared.list(None)
            assert page.images == tuple(local.catalogue.get(ref).info() for ref in ("a/b:1.0_x", "a:1", "b:1"))
            # more than one answer of any server has
            await asyncio.gather(*(objects.put(f"many/{number}", b"") for number in range(1050)))
            assert len(set(await objects.list("many", 2000))) == 1050
            with pytest.raises(CapacityError, match="more than 1000"):
                await objects.list("many", 1000)


async def test_a_node_forgets_what_the_store_has(kind: str, tmp_path: Path) -> None:
    async def hold(key: str, descriptor: int) -> None:
        """Nothing is held."""

    async def drop(key: str) -> None:
        """Nothing is mounted."""

    async with subject(kind, tmp_path) as store:
        with node(tmp_path / "a", store.open()) as (local, shared):
            mounts = LayerMounts(hold, drop, local.catalogue.layer, mount=lambda _: os.open("/dev/null", os.O_RDONLY))
            images = StoreImages(local, mounts, shared)
            for ref in ("kept:1", "lost:1", "app:1"):
                put_image(local, ref, ref.encode() * 1000)
            await shared.publish("app:1", quiet)
            await shared.publish("lost:1", quiet)
            await obstore.delete_async(store.open()._store, "names/lost/_tags/1")
            would = await images.collect(0, True)
            assert [ref for each in would.collected for ref in each.refs] == ["app:1"]
            assert {each.ref for each in local.catalogue.list()} == {"kept:1", "lost:1", "app:1"}
            assert (await images.collect(0, False)).collected == would.collected
            assert {each.ref for each in local.catalogue.list()} == {"kept:1", "lost:1"}
            await shared.resolve("app:1")


async def test_what_is_missing(kind: str, tmp_path: Path) -> None:
    async with subject(kind, tmp_path) as store:
        objects = store.open()
        assert await objects.size("packs/none") is None
        assert await objects.get("packs/none", 10) is None
        assert await objects.list("nothing", 10) == []
        with pytest.raises(IntegrityError, match="it is missing"):
            await objects.get_range("packs/none", 0, 10)
        await objects.put("packs/short", b"0123456789")
        assert bytes(await objects.get_range("packs/short", 2, 3)) == b"234"
        for start, length in ((5, 10), (10, 1), (500, 10)):
            with pytest.raises(IntegrityError, match="ends before"):
                await objects.get_range("packs/short", start, length)
        with pytest.raises(IntegrityError, match="more than 5"):
            await objects.get("packs/short", 5)
        with node(tmp_path / "a", objects) as (_, shared), pytest.raises(ImageNotFoundError, match="none:1"):
            await shared.resolve("none:1")


async def all_fail(objects: Objects, tmp_path: Path) -> list[DSecError]:
    """Whatever is asked, but for a look at one object, whose answer has no words."""
    with node(tmp_path / "failing", objects) as (local, shared):
        put_image(local, "app:1", DATA)
        asked: list[Awaitable[object]] = [
            shared.resolve("other:1"),
            shared.publish("app:1", quiet),
            shared.list(None),
            objects.get_range("packs/some", 0, 10),
            objects.put("packs/some", b"x"),
        ]
        failed = [await asyncio.gather(each, return_exceptions=True) for each in asked]
    return [error for [error] in failed if isinstance(error, DSecError)]


async def test_wrong_credentials(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = urlsplit(kind).scheme
    names = [name for name in CLOUDS.get(scheme, ((), ()))[1] if os.environ.get(name)]
    if not names:
        pytest.skip("this store has no secret in the environment")
    for name in names:
        monkeypatch.setenv(name, WRONG)
    objects = open_store(f"{kind}/none")
    try:
        await objects.get("any", 10)
    except PermissionDeniedError:
        pass
    else:
        pytest.skip("this server lets everybody in")
    errors = await all_fail(objects, tmp_path)
    assert [type(error) for error in errors] == [PermissionDeniedError] * 5
    for error in errors:
        assert WRONG not in str(error)
        assert names[0] in str(error)


async def test_a_bucket_that_is_not_there(kind: str, tmp_path: Path) -> None:
    parts = urlsplit(kind)
    if parts.scheme not in CLOUDS:
        pytest.skip("this store has no buckets")
    objects = open_store(f"{parts.scheme}://dsec-there-is-none-{secrets.token_hex(4)}/x")
    errors = await all_fail(objects, tmp_path)
    # a cloud whose buckets are everybody's may not tell whether there is one
    assert [type(error) for error in errors] in ([UnavailableError] * 5, [PermissionDeniedError] * 5)
    assert all("bucket" in str(error) or isinstance(error, PermissionDeniedError) for error in errors)


@contextlib.asynccontextmanager
async def before(kind: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    """A proxy, as the server of whatever is opened from now on."""
    scheme = urlsplit(kind).scheme
    name = next((name for name in CLOUDS.get(scheme, ((), ()))[0] if os.environ.get(name)), None)
    endpoint = urlsplit(os.environ[name]) if name else None
    if name is None or endpoint is None or endpoint.scheme != "http":
        pytest.skip("needs a server whose endpoint is one of http")
    proxy = Proxy(endpoint.hostname or "", endpoint.port or 80)
    async with proxy.serving() as port:
        monkeypatch.setenv(name, endpoint._replace(netloc=f"127.0.0.1:{port}").geturl())
        yield proxy


@pytest.mark.parametrize("stalls", [False, True])
async def test_a_server_that_stops_half_way(
    kind: str, stalls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with subject(kind, tmp_path) as store:
        direct = store.open()
        async with before(kind, monkeypatch) as proxy:
            through = open_store(store.url, STRICT)
            with node(tmp_path / "a", direct) as (local, shared), node(tmp_path / "b", through) as (_, reader):
                layer = put_image(local, "app:1", LARGE).layers[0]
                await shared.publish("app:1", quiet)
                found = (await reader.resolve("app:1")).layers[0]
                proxy.stop_after(100_000, of_answers=True, stalls=stalls)
                with pytest.raises(UnavailableError, match="cannot read packs/"):
                    await read_chunks(reader, found)
                proxy.heal()
                assert await read_chunks(reader, found) == data_of(layer)


@pytest.mark.parametrize("stalls", [False, True])
@pytest.mark.parametrize("of_answers", [False, True])
async def test_a_server_that_stops_while_one_publishes(
    kind: str, of_answers: bool, stalls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with subject(kind, tmp_path) as store:
        direct = store.open()
        async with before(kind, monkeypatch) as proxy:
            through = open_store(store.url, STRICT)
            with node(tmp_path / "a", through) as (local, shared), node(tmp_path / "b", direct) as (_, reader):
                layer = put_image(local, "app:1", LARGE).layers[0]
                proxy.stop_after(800 if of_answers else 1_000_000, of_answers=of_answers, stalls=stalls)
                with pytest.raises(UnavailableError, match="cannot"):
                    await shared.publish("app:1", quiet)
                with pytest.raises(ImageNotFoundError):
                    await reader.resolve("app:1")
                proxy.heal()
                await shared.publish("app:1", quiet)
                found = (await reader.resolve("app:1")).layers[0]
                assert await read_chunks(reader, found) == data_of(layer)
