"""A store that is read by HTTP."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from published import CHUNK, data_of, node, noise, open_impatient, put_image, quiet, read_chunks

from dsec.store.oci.manifest import OCI_MANIFEST
from dsec.store.remote.objects import Objects, Patience
from dsec.store.remote.opening import open_store
from dsec.testing.http_store import HttpStore, http_store
from libdsec.protocol.errors import (
    AlreadyExistsError,
    ImageNotFoundError,
    IntegrityError,
    UnavailableError,
    UnsupportedOperationError,
)

DATA = noise(1) + bytes(2 * CHUNK) + noise(2) + b"text " * 200_000


async def test_what_a_directory_has_is_read_by_http(tmp_path: Path) -> None:
    with node(tmp_path / "a", open_impatient(str(tmp_path / "shared"))) as (local, shared):
        layer = put_image(local, "app/x:v1", DATA).layers[0]
        await shared.publish("app/x:v1", quiet)
        server = HttpStore(str(tmp_path))
        async with server.serving() as port:
            objects = open_impatient(f"http://user:secret@127.0.0.1:{port}/shared")
            assert objects.url == f"http://127.0.0.1:{port}/shared"
            with node(tmp_path / "b", objects) as (other, reader):
                found = (await reader.resolve("app/x:v1")).layers[0]
                before = server.requests
                assert await read_chunks(reader, found) == data_of(layer)
                assert server.requests == before + 1
                with pytest.raises(ImageNotFoundError):
                    await reader.resolve("app/x:v2")
                put_image(other, "mine:v1", b"x")
                with pytest.raises(UnsupportedOperationError, match="HTTP"):
                    await reader.publish("mine:v1", quiet)


async def test_a_store_that_is_slower_than_its_deadline(tmp_path: Path) -> None:
    server = HttpStore(str(tmp_path), latency_s=30.0)
    async with server.serving() as port:
        objects = open_store(f"http://127.0.0.1:{port}", Patience(attempt_s=0.05, attempts=2, backoff_s=0.0))
        with (
            node(tmp_path / "b", objects) as (_, reader),
            pytest.raises(UnavailableError, match="did not answer within"),
        ):
            await reader.resolve("app:v1")
        assert server.requests == 2


async def test_nobody_there(tmp_path: Path) -> None:
    async with HttpStore(str(tmp_path)).serving() as port:
        pass
    objects = open_impatient(f"http://me:secret@127.0.0.1:{port}/?key=hidden")
    with node(tmp_path / "b", objects) as (_, reader), pytest.raises(UnavailableError, match=f":{port}") as failed:
        await reader.resolve("app:v1")
    assert "secret" not in str(failed.value)
    assert "hidden" not in str(failed.value)


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[Objects]:
    (tmp_path / "object").write_bytes(b"0123456789")
    with http_store(str(tmp_path), latency_ms=1, bandwidth_mb=100) as url:
        yield open_impatient(url)


async def test_ranges_are_exact_or_an_error(objects: Objects) -> None:
    assert bytes(await objects.get_range("object", 2, 3)) == b"234"
    for start, length in ((8, 4), (10, 1), (50, 5)):
        with pytest.raises(IntegrityError, match="ends before"):
            await objects.get_range("object", start, length)
    with pytest.raises(IntegrityError, match="missing"):
        await objects.get_range("none", 0, 1)
    assert await objects.get("object", 10) == b"0123456789"
    with pytest.raises(IntegrityError, match="more than 9"):
        await objects.get("object", 9)
    counts = await objects.get("-/counts", 1000)
    assert counts is not None
    assert b"requests" in counts


async def test_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By S3's client, with its settings from the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    (tmp_path / "bucket").mkdir()
    server = HttpStore(str(tmp_path), writable=True)
    async with server.serving() as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        objects = open_impatient("s3://bucket/prefix")
        with node(tmp_path / "a", objects) as (local, shared), node(tmp_path / "b", objects) as (other, reader):
            layer = put_image(local, "app:v1", DATA).layers[0]
            first = await shared.publish("app:v1", quiet)
            assert first.store == "s3://bucket/prefix"
            assert (await shared.publish("app:v1", quiet)).bytes_sent == 0
            found = (await reader.resolve("app:v1")).layers[0]
            assert await read_chunks(reader, found) == data_of(layer)
            other.remove("app:v1", lambda _: False)
            put_image(other, "app:v1", noise(7))
            with pytest.raises(AlreadyExistsError):
                await reader.publish("app:v1", quiet)
            assert not await objects.put("names/app/_tags/v1", b"other")


async def test_who_speaks_tls_is_not_kept_waiting(tmp_path: Path) -> None:
    async with HttpStore(str(tmp_path)).serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x02\x00\x01")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_a_directory_is_empty_and_a_manifest_has_its_type(tmp_path: Path) -> None:
    (tmp_path / "v2/a/manifests").mkdir(parents=True)
    (tmp_path / "v2/a/manifests/1").write_text("{}")
    async with HttpStore(str(tmp_path)).serving() as port:

        def ask(path: str) -> tuple[str, bytes]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
                return answer.headers.get("Content-Type", ""), answer.read()

        assert await asyncio.to_thread(ask, "v2/") == ("", b"")
        assert await asyncio.to_thread(ask, "v2/a/manifests/1") == (OCI_MANIFEST, b"{}")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            await asyncio.to_thread(ask, "v2")
