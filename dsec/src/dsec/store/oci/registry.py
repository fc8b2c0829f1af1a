"""One repository of a registry: version 2 of the distribution API (OCI distribution specification 1.1).

What is read is checked against its digest before it is given back, or, a blob's stream, when its end is read. A stream
that is cut goes on where it was, by a range.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urlencode

from urllib3.exceptions import HTTPError

from libdsec.protocol.errors import (
    DSecError,
    IntegrityError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from libdsec.protocol.images import RegistryLogin

from .blobs import Bytes, Verified
from .connection import Connection, Patience, Response, give_back, network_error, nothing
from .manifest import ACCEPTED, MAX_MANIFEST_BYTES
from .reference import RegistryPlace

_ANY: Final = tuple(range(200, 600))
UPLOAD_CHUNK: Final = 8 * 1024 * 1024
WINDOW_S: Final = 60.0
MIN_WINDOW_BYTES: Final = 64 * 1024
"""Slower than that over a window and a blob counts as stuck: drops of bytes must not hold a pull for ever."""

FORGIVING_BYTES: Final = 1024 * 1024
"""After so much without a cut, earlier cuts count no more."""


class Fetched(NamedTuple):
    """A manifest as it came."""

    body: bytes
    media_type: str
    digest: str


class Registry:
    """Methods block; for one thread at a time. `pulse` is called at least each second and may raise, except while a
    silent peer is waited for."""

    def __init__(
        self,
        place: RegistryPlace,
        *,
        login: RegistryLogin | None = None,
        plain_http: bool = False,
        writes: bool = False,
        pulse: Callable[[], None] = nothing,
        patience: Patience | None = None,
    ) -> None:
        """:raises InvalidArgumentError: plain http for a host that is not loopback."""
        self.host = place.host
        self.name = place.name
        self._scope = f"repository:{place.name}:{'pull,push' if writes else 'pull'}"
        self._connection = Connection(place.host, login=login, plain_http=plain_http, pulse=pulse, patience=patience)

    def close(self) -> None:
        self._connection.close()

    def manifest(self, reference: str) -> Fetched:
        """By tag or digest.

        :raises NotFoundError: there is none.
        :raises IntegrityError: it has not the digest asked for, or the one that the registry says.
        """
        path = f"/v2/{self.name}/manifests/{reference}"
        response = self._get(path, {"Accept": ", ".join(ACCEPTED)})
        try:
            body = self._body(response, path, MAX_MANIFEST_BYTES)
        finally:
            give_back(response)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        told = response.headers.get("Docker-Content-Digest", "")
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        wanted = reference if ":" in reference else told
        if wanted.startswith("sha256:") and wanted != digest:
            raise IntegrityError(f"cannot use {path}: its bytes have the digest {digest}, not {wanted}")
        return Fetched(body, kind, digest)

    def blob(self, digest: str, size: int, told: Callable[[int], None] = lambda _: None) -> Verified:
        """A blob's bytes, to be closed; checked when the end is read."""
        inner = _Blob(self._connection, f"/v2/{self.name}/blobs/{digest}", self._scope, size)
        return Verified(inner, f"blob {digest} of {self._connection.host}", digest=digest, size=size, told=told)

    def has_blob(self, digest: str) -> bool:
        response = self._connection.request(
            "HEAD", f"/v2/{self.name}/blobs/{digest}", scope=self._scope, good=(200, 404)
        )
        response.release_conn()
        return response.status == 200

    def mount_blob(self, digest: str, name: str) -> bool:
        """Have a blob that another repository of this registry has, where the registry does that for this login.

        An upload that it begins instead is left to it: nothing comes of it, and it may want more rights to end one.
        """
        query = urlencode({"mount": digest, "from": name})
        try:
            answer = self._connection.request(
                "POST",
                f"/v2/{self.name}/blobs/uploads/?{query}",
                scope=f"{self._scope} repository:{name}:pull",
                good=_ANY,
                headers={"Content-Length": "0"},
            )
            give_back(answer)
            return answer.status == 201 and self.has_blob(digest)
        except DSecError:
            return False  # what it has against a push, it says when the blob is sent

    def put_blob(self, digest: str, size: int, content: Bytes, told: Callable[[int], None] = lambda _: None) -> None:
        """Upload what `content` gives, in chunks; the registry checks the digest."""
        begin = self._connection.request(
            "POST", f"/v2/{self.name}/blobs/uploads/", scope=self._scope, good=(202,), headers={"Content-Length": "0"}
        )
        where = self._upload_url(begin, "")
        buffer = bytearray(min(UPLOAD_CHUNK, size))
        sent = 0
        while sent < size:
            count = _fill(content, memoryview(buffer)[: min(len(buffer), size - sent)])
            if not count:
                raise InvalidArgumentError(f"cannot upload {digest}: {sent} bytes came of {size}")
            answer = self._connection.request(
                "PATCH",
                where,
                scope=self._scope,
                good=(202, 204),
                headers={
                    "Content-Type": "application/octet-stream",
                    "Content-Range": f"{sent}-{sent + count - 1}",
                },
                body=bytes(memoryview(buffer)[:count]),
            )
            where = self._upload_url(answer, where)
            sent += count
            told(count)
        end = where + ("&" if "?" in where else "?") + urlencode({"digest": digest})
        try:
            give_back(self._connection.request("PUT", end, scope=self._scope, good=(201, 204), body=b""))
        except NotFoundError:
            # the answer to an earlier try may have been lost: then the upload is over, and the blob is there
            if not self.has_blob(digest):
                raise

    def put_manifest(self, reference: str, body: bytes, media_type: str) -> str:
        """Upload a manifest under a tag or its digest. Returns its digest.

        :raises IntegrityError: the registry says that it has got something else.
        """
        path = f"/v2/{self.name}/manifests/{reference}"
        response = self._connection.request(
            "PUT", path, scope=self._scope, good=(201, 202), headers={"Content-Type": media_type}, body=body
        )
        told = response.headers.get("Docker-Content-Digest", "")
        give_back(response)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if told and told != digest:
            raise IntegrityError(f"cannot push {path}: {self._connection.host} has got {told}, not {digest}")
        return digest

    def _get(self, path: str, headers: dict[str, str]) -> Response:
        return self._connection.request("GET", path, scope=self._scope, headers=headers)

    def _body(self, response: Response, path: str, most: int) -> bytes:
        try:
            body = self._connection.document(response, most + 1)
        except HTTPError as error:
            raise UnavailableError(f"cannot read {path}: {network_error(error)}") from None
        if len(body) > most:
            raise IntegrityError(f"cannot use {path}: it has more than {most} bytes")
        return body

    def _upload_url(self, response: Response, before: str) -> str:
        """Where the next part goes; the registry may change it with each, and it must stay the registry."""
        where = response.headers.get("Location", "") or before
        give_back(response)
        return self._connection.own_url(where)


class _Blob:
    """A blob from the network, from front to end, over cut connections."""

    def __init__(self, connection: Connection, path: str, scope: str, size: int) -> None:
        self._connection = connection
        self._path = path
        self._scope = scope
        self._size = size
        self._at = 0
        self._cut_at = 0
        self._tries = 0
        """Since it last went on for a while."""
        self._response: Response | None = None
        self._waited = 0.0
        self._in_window = 0

    def readinto(self, view: memoryview, /) -> int:
        """:raises UnavailableError: it cannot be had, after some tries."""
        while True:
            self._connection.pulse()
            if self._response is None:
                self._open()
                continue
            begun = time.monotonic()
            try:
                part = self._response.read1(len(view))
            except HTTPError as error:
                self._cut(network_error(error))
                continue
            self._timed(time.monotonic() - begun, len(part))
            if not part:
                if self._at < self._size:
                    self._cut(f"it ended after {self._at} of {self._size} bytes")
                    continue
                return 0
            self._at += len(part)
            if self._at >= self._cut_at + FORGIVING_BYTES:
                self._tries = 0
            view[: len(part)] = part
            return len(part)

    def close(self) -> None:
        if self._response is not None:
            if self._at >= self._size:
                give_back(self._response)
            else:
                self._response.close()
            self._response = None

    def _open(self) -> None:
        headers = {"Range": f"bytes={self._at}-"} if self._at else {}
        response = self._connection.request(
            "GET", self._path, scope=self._scope, headers=headers, good=(200, 206) if self._at else (200,)
        )
        self._response = response
        if self._at and response.status == 200:
            self._skip(response, self._at)  # it knows no ranges
        elif self._at and not response.headers.get("Content-Range", "").startswith(f"bytes {self._at}-"):
            raise UnavailableError(
                f"cannot go on with {self._path}: asked for bytes from {self._at}, the registry gives "
                f"{response.headers.get('Content-Range', '')[:100]!r}"
            )

    def _skip(self, response: Response, count: int) -> None:
        try:
            while count:
                begun = time.monotonic()
                part = response.read1(min(count, 256 * 1024))
                self._timed(time.monotonic() - begun, len(part))
                if not part:
                    return  # shorter than before: the next read finds the end too early
                count -= len(part)
                self._connection.pulse()
        except HTTPError as error:
            self._cut(network_error(error))

    def _cut(self, why: str) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None
        self._tries += 1
        self._cut_at = self._at
        self._connection.try_again(self._tries, f"{self._path}: {why}")

    def _timed(self, seconds: float, count: int) -> None:
        self._waited += seconds
        self._in_window += count
        if self._waited >= WINDOW_S:
            if self._in_window < MIN_WINDOW_BYTES:
                raise UnavailableError(
                    f"cannot read {self._path}: {self._in_window} bytes in {self._waited:.0f} s is too slow"
                )
            self._waited = 0.0
            self._in_window = 0


def _fill(content: Bytes, view: memoryview) -> int:
    filled = 0
    while filled < len(view) and (got := content.readinto(view[filled:])):
        filled += got
    return filled
