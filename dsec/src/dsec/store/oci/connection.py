"""Requests to one registry: credentials, redirects, and the patience that networks need.

A request is tried again after a 429, a 5xx or a cut connection, later each time and not for ever. Redirects are
followed by hand: only to https (or to loopback, where plain http was asked for), and what is sent to another host than
the registry carries no credentials. Whoever waits is woken at least once a second by `pulse`, which may raise.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError, InvalidHeader, LocationValueError, SSLError

from libdsec.protocol.errors import (
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from libdsec.protocol.images import RegistryLogin

from .login import MAX_TOKEN_BYTES, Login
from .reference import is_loopback

CONNECT_S: Final = 10.0
SILENCE_S: Final = 30.0
"""Without a byte of an answer."""
MAX_TRIES: Final = 6
MAX_REDIRECTS: Final = 5
MAX_CHALLENGES: Final = 2
"""Of one request; a third one means that what was given is not enough."""
MAX_WAIT_S: Final = 30.0
_FIRST_WAIT_S: Final = 0.5
_PULSE_S: Final = 0.5
MAX_ERROR_BYTES: Final = 4096
DOCUMENT_S: Final = 120.0
"""For a manifest or a token to come whole: drops of bytes must not hold a push for ever."""
WORDS_S: Final = 5.0
"""For what a registry says of an error, and for the rest of an answer that nobody wants."""

_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_MOVED: Final = frozenset({301, 302, 303, 307, 308})

Response = urllib3.BaseHTTPResponse


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait; the tests are less patient."""

    tries: int = MAX_TRIES
    first_wait_s: float = _FIRST_WAIT_S
    silence_s: float = SILENCE_S
    connect_s: float = CONNECT_S
    document_s: float = DOCUMENT_S


def nothing() -> None:
    """The pulse of somebody who cannot be interrupted."""


_NO_TLS = re.compile("WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|HTTP_REQUEST")
"""What OpenSSL says where the other side answers in plain HTTP; by its versions."""


class Connection:
    """A registry as somebody: what is asked through this goes out with `login`. For one thread at a time."""

    def __init__(
        self,
        host: str,
        *,
        login: RegistryLogin | None = None,
        plain_http: bool = False,
        pulse: Callable[[], None] = nothing,
        patience: Patience | None = None,
    ) -> None:
        """:raises InvalidArgumentError: plain http, and the host is not loopback."""
        if plain_http and not is_loopback(host):
            raise InvalidArgumentError(
                f"cannot use plain http with {host}: only with this machine itself (localhost, 127.0.0.1)",
                field="plain_http",
            )
        self.host = host
        self.patience = patience or Patience()
        self.pulse = pulse
        self._plain_http = plain_http
        self._base = f"{'http' if plain_http else 'https'}://{host}"
        self._login = Login(host, login, self._ask_realm, may_ask=self._may_go)
        self._pools: dict[str, urllib3.PoolManager] = {}

    def close(self) -> None:
        for pool in self._pools.values():
            pool.clear()

    def request(
        self,
        method: str,
        path: str,
        *,
        scope: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        good: tuple[int, ...] = (200,),
    ) -> Response:
        """The answer to one request, its body not read yet; `path` may be a whole URL that the registry gave.

        Raises what `failure` makes of other answers than the `good` ones, `UnavailableError` where there is none.
        """
        tries = 0
        while True:
            self.pulse()
            tries += 1
            try:
                response = self._answered(method, urljoin(self._base, path), scope, dict(headers or {}), body)
            except HTTPError as error:
                self._after(error, tries, f"{method} {_plain(path)}")
                continue
            if response.status in good:
                return response
            if response.status not in _AGAIN:
                raise self.failure(response, method, path)
            why = f"{method} {_plain(path)} was answered with {response.status}"
            wanted = response.headers.get("Retry-After", "")
            give_back(response)
            self.try_again(tries, why, float(wanted) if re.fullmatch("[0-9]{1,5}", wanted) else 0.0)

    def document(self, response: Response, most: int) -> bytes:
        """An answer's body, of which no more than `most` bytes are read.

        :raises HTTPError: it is cut off.
        :raises UnavailableError: it takes too long.
        """
        body, whole = _came(response, most, self.patience.document_s, self.pulse)
        if not whole:
            raise UnavailableError(
                f"cannot read from {self.host}: {len(body)} bytes of an answer in {self.patience.document_s:g} s is "
                "too slow"
            )
        return body

    def own_url(self, where: str) -> str:
        """A URL that the registry names for what is sent to it.

        :raises UnavailableError: it is another host's.
        """
        url = self._joined(self._base, where)
        if _origin(url) != _origin(self._base):
            raise UnavailableError(f"cannot upload to {self.host}: it sends the upload to {_shown(url)!r}")
        return url

    def try_again(self, tries: int, why: str, wanted_s: float = 0.0) -> None:
        """Wait before the next try. `wanted_s` is what the registry asks for.

        :raises UnavailableError: it was tried often enough, or the registry wants too long a wait; says `why`.
        """
        if tries >= self.patience.tries:
            raise UnavailableError(f"cannot reach {self.host}: {why} ({tries} times)", host=self.host)
        if wanted_s > MAX_WAIT_S:
            raise UnavailableError(f"cannot reach {self.host}: {why}, and wants {wanted_s:.0f} s without requests")
        first = self.patience.first_wait_s
        delay = max(wanted_s, min(MAX_WAIT_S, first * 2 ** (tries - 1)) * random.uniform(0.5, 1.0))
        self._sleep(delay)

    def failure(self, response: Response, method: str, path: str) -> Exception:
        """The error that an answer stands for."""
        said = _words(response)
        what = f"{method} {_plain(path)} at {self.host}: it answered {response.status}" + f" ({said})" * bool(said)
        if response.status == 401:
            return UnauthenticatedError(f"cannot do {what}", host=self.host)
        if response.status == 403:
            return PermissionDeniedError(f"cannot do {what}", host=self.host)
        if response.status in (404, 410):
            return NotFoundError(
                f"cannot find {_plain(path)} at {self.host}: {said or 'there is none'}", host=self.host
            )
        return UnavailableError(f"cannot do {what}", host=self.host, status=response.status)

    def _answered(self, method: str, url: str, scope: str, headers: dict[str, str], body: bytes | None) -> Response:
        """One request with its challenges and redirects."""
        own = _origin(url) == _origin(self._base)
        challenges = redirects = 0
        while True:
            sent = dict(headers)
            if own and (header := self._login.header(scope)) is not None:
                sent["Authorization"] = header
            response = self._send(method, url, sent, body)
            if response.status == 401 and own and challenges < MAX_CHALLENGES:
                challenges += 1
                offers = response.headers.getlist("WWW-Authenticate")
                give_back(response)
                self._login.answer(offers, scope)
            elif response.status in _MOVED and method in ("GET", "HEAD"):
                redirects += 1
                to = self._joined(url, response.headers.get("Location", ""))
                give_back(response)
                if redirects > MAX_REDIRECTS:
                    raise UnavailableError(f"cannot reach {self.host}: more than {MAX_REDIRECTS} redirects")
                if not self._may_go(to):
                    raise UnavailableError(f"cannot follow {self.host} to {_shown(to)!r}: it is not https")
                url = to
                own = _origin(url) == _origin(self._base)
            else:
                return response

    def _send(self, method: str, url: str, headers: dict[str, str], body: bytes | None) -> Response:
        timeout = urllib3.Timeout(connect=self.patience.connect_s, read=self.patience.silence_s)
        try:
            return self._pool(url).request(
                method,
                url,
                body=body,
                headers={"User-Agent": "dsec", **headers},
                redirect=False,
                retries=False,
                timeout=timeout,
                preload_content=False,
                decode_content=False,
            )
        except (LocationValueError, InvalidHeader, UnicodeError, ValueError) as error:
            raise UnavailableError(
                f"cannot reach {self.host}: {_shown(url)!r} cannot be asked ({type(error).__name__})"
            ) from None

    def _ask_realm(self, method: str, url: str, headers: dict[str, str], body: bytes | None) -> tuple[int, bytes]:
        tries = 0
        while True:
            self.pulse()
            tries += 1
            try:
                response = self._send(method, url, headers, body)
                status, answer = response.status, self.document(response, MAX_TOKEN_BYTES)
                give_back(response)
            except HTTPError as error:
                self._after(error, tries, _shown(url))
                continue
            if status not in _AGAIN:
                return status, answer
            self.try_again(tries, f"{_shown(url)} was answered with {status}")

    def _pool(self, url: str) -> urllib3.PoolManager:
        """By the proxy that the environment names for this URL, if any."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        proxy = "" if is_loopback(host) or proxy_bypass(host) else getproxies().get(parts.scheme, "")
        pool = self._pools.get(proxy)
        if pool is None:
            pool = _by_proxy(proxy) if proxy else urllib3.PoolManager()
            self._pools[proxy] = pool
        return pool

    def _may_go(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
        except ValueError:
            return False
        if parts.scheme == "https":
            return bool(parts.hostname)
        return parts.scheme == "http" and self._plain_http and is_loopback(parts.netloc.rpartition("@")[2])

    def _after(self, error: HTTPError, tries: int, what: str) -> None:
        """Try again, unless that is in vain."""
        why = f"{what}: {network_error(error)}"
        if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise UnavailableError(f"cannot trust {self.host}: {why}; SSL_CERT_FILE of the server may name more roots")
        if isinstance(error, SSLError) and _NO_TLS.search(str(error)):
            raise UnavailableError(
                f"cannot reach {self.host}: it does not speak TLS; if it is a registry on this machine that speaks "
                "plain HTTP say --plain-http (plain_http=True)"
            )
        self.try_again(tries, why)

    def _joined(self, url: str, to: str) -> str:
        try:
            joined = urljoin(url, to)
            urlsplit(joined).port  # noqa: B018 - reading it is what checks it
        except ValueError as error:
            raise UnavailableError(f"cannot follow {self.host} to {to[:200]!r}: {error}") from None
        return joined

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.pulse()
            time.sleep(min(left, _PULSE_S))


def _by_proxy(proxy: str) -> urllib3.ProxyManager:
    """With the user and the password that its URL may have."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return urllib3.ProxyManager(proxy)
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return urllib3.ProxyManager(proxy, proxy_headers=urllib3.make_headers(proxy_basic_auth=login))


def give_back(response: Response) -> None:
    """The connection to where it came from, or closed where much of the answer is left."""
    try:
        rest, whole = _came(response, MAX_ERROR_BYTES, WORDS_S)
        ended = whole and len(rest) < MAX_ERROR_BYTES and not response.length_remaining
    except HTTPError:
        ended = False
    if ended:
        response.release_conn()
    else:
        response.close()


def network_error(error: Exception) -> str:
    """An error of urllib3 in a few words, without the pool that it begins with."""
    reason = getattr(error, "reason", None) or (error.args[-1] if error.args else error)
    return str(reason).partition(">: ")[2][:300] or str(reason)[:300] or type(error).__name__


def _words(response: Response) -> str:
    """What the registry says of an error."""
    try:
        text = _came(response, MAX_ERROR_BYTES, WORDS_S)[0].decode("utf-8", "replace")
    except HTTPError:
        text = ""
    response.close()
    return " ".join(text.split())[:300]


def _came(response: Response, most: int, seconds: float, pulse: Callable[[], None] = nothing) -> tuple[bytes, bool]:
    """What comes of an answer within so long, at most so much; and whether that was long enough."""
    end = time.monotonic() + seconds
    body = bytearray()
    while len(body) < most and (part := response.read1(most - len(body))):
        body += part
        pulse()
        if time.monotonic() >= end:
            return bytes(body), False
    return bytes(body), True


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _plain(path: str) -> str:
    """A path, or a URL that the registry gave, for messages: without its query, in which uploads carry their state."""
    return path.partition("?")[0][:200]


def _shown(url: str) -> str:
    """Without its query: redirects to object stores carry signatures in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:200]
