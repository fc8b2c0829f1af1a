"""Stores by URLs whose settings are wrong, and servers that do not keep what they should."""

from __future__ import annotations

from pathlib import Path

import pytest
from published import CHUNK, IMPATIENT, node, noise, open_impatient, put_image, quiet

from dsec.store.remote.manifest import layer_path
from dsec.store.remote.objects import Objects
from dsec.store.remote.opening import open_store
from dsec.testing.http_store import HttpStore
from libdsec.protocol.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedOperationError,
)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GOOGLE_ALLOW_HTTP", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")


@pytest.mark.parametrize(
    ("url", "name", "endpoint", "told"),
    [
        ("s3://bucket", "AWS_ENDPOINT_URL", "127.0.0.1:9000", "AWS_ENDPOINT_URL must be a URL"),
        ("s3://bucket", "AWS_ENDPOINT_URL_S3", "http://", "AWS_ENDPOINT_URL_S3 must be a URL"),
        ("s3a://bucket", "AWS_ENDPOINT", "http://127.0.0.1:9000", "set AWS_ALLOW_HTTP=true"),
        ("S3://bucket", "AWS_ENDPOINT_URL", "http://127.0.0.1:9000", "set AWS_ALLOW_HTTP=true"),
        ("GS://bucket", "GOOGLE_BASE_URL", "127.0.0.1:9000", "GOOGLE_BASE_URL must be a URL"),
        ("gs://bucket", "GOOGLE_BASE_URL", "http://127.0.0.1:9000", "set GOOGLE_ALLOW_HTTP=true"),
        ("az://bucket", "AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:9000", "set AZURE_ALLOW_HTTP=true"),
        ("az://bucket", "HOME", "/nowhere", "AZURE_STORAGE_ACCOUNT_NAME"),
        ("abfs://bucket", "HOME", "/nowhere", "who has one there sets AZURE_STORAGE_ACCOUNT_NAME"),
        ("s3://u:hidden@[bucket", "HOME", "/nowhere", "it is no URL"),
        ("https://u:hidden@a\u2100b/x", "HOME", "/nowhere", "it is no URL"),
    ],
)
def test_endpoints_that_are_none(
    url: str, name: str, endpoint: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, endpoint)
    with pytest.raises(InvalidArgumentError, match=told) as failed:
        open_store(url)
    assert "hidden" not in str(failed.value)


def test_an_endpoint_without_tls_where_that_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "Yes")
    assert open_store("s3://bucket/x").url == "s3://bucket/x"


def test_a_scheme_may_be_in_capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "none of its business")
    assert open_store("S3://bucket/x").url == "s3://bucket/x"


class Replacing(HttpStore):
    """Knows no conditions, as servers of an earlier time."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory, writable=True)
        self.put: list[tuple[str, bytes]] = []

    def _put(self, target: str, content: bytes, only_new: bool) -> str:
        self.put.append((target, content))
        return super()._put(target, content, False)


async def test_a_server_that_replaces_what_it_should_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bucket").mkdir()
    server = Replacing(str(tmp_path))
    async with server.serving() as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        with node(tmp_path / "a", open_impatient("s3://bucket")) as (local, shared):
            image = put_image(local, "app:1", noise(1, 5 * CHUNK), noise(2), noise(3, 3 * CHUNK))
            with pytest.raises(UnsupportedOperationError, match="If-None-Match"):
                await shared.publish("app:1", quiet)
            # the smallest layer alone went there, and its table twice
            table = f"/bucket/{layer_path(image.layers[1].digest, 'layer')}"
            assert [target for target, _ in server.put if target.startswith("/bucket/layers")][1:] == [table, table]
            assert sum(len(content) for _, content in server.put) < 2 * CHUNK
            assert not (tmp_path / "bucket/names").exists()


class Metadata(HttpStore):
    """A cloud's, of which a machine asks its own credentials."""

    answer = ""

    def _put(self, target: str, content: bytes, only_new: bool) -> str:
        assert target == "/latest/api/token"
        return self.answer


async def test_credentials_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for kind in ("RELATIVE", "FULL"):
        monkeypatch.delenv(f"AWS_CONTAINER_CREDENTIALS_{kind}_URI", raising=False)
    server = Metadata(str(tmp_path), writable=True)
    async with server.serving() as port:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}")
        objects = open_impatient("s3://bucket")
        server.answer = "503 Service Unavailable"
        with pytest.raises(UnavailableError, match="cannot be had now: try again, or set AWS_"):
            await objects.get("packs/some", 10)
        server.answer = "404 Not Found"
        with pytest.raises(PermissionDeniedError, match="this machine has none of its own: set AWS_"):
            await objects.get("packs/some", 10)
    with pytest.raises(PermissionDeniedError, match="this machine has none of its own: set AWS_"):
        await objects.get("packs/some", 10)


class Conflicting(HttpStore):
    """Keeps what it has, whatever is asked."""

    def _put(self, target: str, content: bytes, only_new: bool) -> str:
        return "409 Conflict"


async def test_what_cannot_be_replaced_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Conflicting(str(tmp_path), writable=True).serving() as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        objects = open_impatient("s3://bucket")
        assert not await objects.put("packs/some", b"x")
        with pytest.raises(UnavailableError, match="409 Conflict"):
            await objects.put("packs/some", b"x", replace=True)


class Forgetful(Objects):
    """Says of every name that there is one, and has none."""

    async def put(self, path: str, content: bytes | bytearray, *, replace: bool = False) -> bool:
        return not path.startswith("names/") and await super().put(path, content, replace=replace)


async def test_a_name_that_is_said_to_be_there_and_is_not(tmp_path: Path) -> None:
    inner = open_impatient("memory:///")
    with node(tmp_path / "a", Forgetful(inner._store, inner.url, patience=IMPATIENT)) as (local, shared):
        put_image(local, "app:1", noise(1))
        with pytest.raises(UnavailableError, match="publish it again"):
            await shared.publish("app:1", quiet)
