"""A shared store by its URL."""

from __future__ import annotations

import os
from urllib.parse import SplitResult, urlsplit, urlunsplit

from obstore.exceptions import BaseError
from obstore.store import HTTPStore, LocalStore, MemoryStore, ObjectStore, from_url

from libdsec.protocol.errors import InvalidArgumentError, UnavailableError

from .answers import CLOUDS, CREDENTIALS
from .objects import Objects, Patience

_CLIENT = {"connect_timeout": "5s", "timeout": "600s"}
"""The deadline of a request as a whole is `Objects`'."""
_PREFIXES = {"s3": "AWS", "az": "AZURE", "gs": "GOOGLE"}
"""By cloud: how its variables begin."""
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
}
"""By cloud: where another server than its own is named. The first that is set counts."""
_TRUE = ("1", "true", "on", "yes", "y")
_NO_RETRIES = {"max_retries": 0}
"""They are `Objects`' too."""


def open_store(url: str, patience: Patience | None = None) -> Objects:
    """`/DIRECTORY`, `file:///DIRECTORY`, `s3://BUCKET/…`, `gs://…`, `az://…`, `http(s)://…` (only read), `memory:///`
    (of this object alone). Credentials, endpoints and regions of clouds come from their usual environment variables
    (`AWS_…`, `GOOGLE_…`, `AZURE_…`). Nothing is asked of the store yet.

    :raises InvalidArgumentError: no such kind of store, or its settings are wrong.
    :raises UnavailableError: there is no such directory.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        # neither it nor the reason is shown: what is secret in it cannot be told
        raise InvalidArgumentError(
            "cannot open the shared store: it is no URL as s3://BUCKET/PREFIX or https://HOST:PORT/PATH", field="store"
        ) from None
    shown = _without_secrets(parts)
    try:
        if url.startswith("/") or parts.scheme == "file":
            return _directory(url if url.startswith("/") else parts.path, patience)
        if parts.scheme == "memory":
            return Objects(MemoryStore(), shown, patience=patience)
        if parts.scheme in ("http", "https") and parts.hostname:
            client = {**_CLIENT, "allow_http": parts.scheme == "http"}
            web = HTTPStore.from_url(url, client_options=client, retry_config=_NO_RETRIES)  # type: ignore[arg-type]
            return Objects(web, shown, writable=False, patience=patience)
        if parts.scheme in CLOUDS and parts.netloc:
            return Objects(_cloud(url, CLOUDS[parts.scheme]), shown, patience=patience)
    except (BaseError, ValueError) as error:
        why = str(error).partition("\n")[0][:300]
        variables = CREDENTIALS.get(CLOUDS.get(parts.scheme, "")) if isinstance(error, BaseError) else None
        advice = f"; who has one there sets {variables}" if variables else ""
        raise InvalidArgumentError(f"cannot open the shared store {shown}: {why}{advice}", field="store") from None
    raise InvalidArgumentError(
        f"cannot open the shared store {shown!r}: it must be an absolute path, or a URL of s3, gs, az, http or https",
        field="store",
    )


def _directory(path: str, patience: Patience | None) -> Objects:
    path = os.path.normpath(path)
    if not os.path.isabs(path):
        raise InvalidArgumentError(f"cannot open the shared store {path!r}: the path must be absolute", field="store")
    if not os.path.isdir(path):
        # making it would publish into the local disk what belongs on a share that is not mounted
        raise UnavailableError(
            f"cannot open the shared store {path}: there is no such directory; mount the share it lies on, or make it",
            store=path,
        )
    return Objects(LocalStore(path), path, directory=path, patience=patience)


def _cloud(url: str, cloud: str) -> ObjectStore:
    # options that are given here keep those of the environment from being read
    plain = any(os.environ.get(f"{prefix}_ALLOW_HTTP", "").lower() in _TRUE for prefix in _PREFIXES.values())
    named = next((name for name in _ENDPOINTS[cloud] if os.environ.get(name)), None)
    if named is not None:
        _check_endpoint(named, os.environ[named], f"{_PREFIXES[cloud]}_ALLOW_HTTP", plain)
    client = {**_CLIENT, "allow_http": plain}
    return from_url(url, client_options=client, retry_config=_NO_RETRIES)  # type: ignore[call-overload,no-any-return]


def _check_endpoint(name: str, endpoint: str, allow: str, plain: bool) -> None:
    """The library panics, or fails without a reason, with one that is none, when something is asked of it.

    :raises ValueError: it is none.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name} must be a URL as https://HOST:PORT")
    if parts.scheme == "http" and not plain:
        raise ValueError(f"{name} is one of http, without TLS: where that is meant, set {allow}=true")


def _without_secrets(parts: SplitResult) -> str:
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
