"""Stores by URLs whose settings are wrong."""

from __future__ import annotations

import pytest

from dsec.store.remote.opening import open_store
from libdsec.protocol.errors import InvalidArgumentError


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
        ("gs://bucket", "GOOGLE_BASE_URL", "http://127.0.0.1:9000", "set GOOGLE_ALLOW_HTTP=true"),
        ("az://bucket", "AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:9000", "set AZURE_ALLOW_HTTP=true"),
        ("az://bucket", "HOME", "/nowhere", "AZURE_STORAGE_ACCOUNT_NAME"),
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
