"""What a registry wants to see before it answers: the challenge in a 401, and the header that answers it.

Of a bearer challenge the token comes from the realm that the registry names, which gets the credentials, and so must be
reached by TLS (or be loopback, where plain http was asked for). A token is for one scope and is used until it ends.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlencode, urlsplit

import msgspec

from libdsec.protocol.errors import UnauthenticatedError, UnavailableError
from libdsec.protocol.images import RegistryLogin

MAX_TOKEN_BYTES: Final = 256 * 1024
CLIENT: Final = "dsec"
_TOKEN_S: Final = 60.0
"""How long a token lasts that does not say."""
_MARGIN_S: Final = 10.0

# what separates is taken in one run: two next to each other could share out a long row of spaces in many ways
_SCHEME: Final = re.compile(r"[\s,]*([A-Za-z][A-Za-z0-9._~+-]*)(?:\s+|$)(?!=)")
_PARAMETER: Final = re.compile(r'[\s,]*([A-Za-z][A-Za-z0-9_-]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Challenge:
    scheme: str
    """In lower case."""
    parameters: Mapping[str, str]


class Ask(Protocol):
    """Sends one request to the realm and gives its status and body; follows no redirect."""

    def __call__(self, method: str, url: str, headers: dict[str, str], body: bytes | None) -> tuple[int, bytes]: ...


class _Answer(msgspec.Struct):
    token: str = ""
    access_token: str = ""
    expires_in: float = 0.0


@dataclass(frozen=True, slots=True)
class _Kept:
    header: str
    until: float


class Login:
    """The credentials of one registry, and what they have opened so far."""

    def __init__(
        self,
        host: str,
        login: RegistryLogin | None,
        ask: Ask,
        *,
        may_ask: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`may_ask` says whether a realm's URL may be sent credentials."""
        self._host = host
        self._login = login
        self._ask = ask
        self._may_ask = may_ask
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def header(self, scope: str) -> str | None:
        """What to send with a request, None before there was a challenge."""
        kept = self._kept.get(scope)
        return kept.header if kept is not None and kept.until > self._clock() else None

    def answer(self, challenges: Sequence[str], scope: str) -> None:
        """Have ready what answers these `WWW-Authenticate` headers.

        :raises UnauthenticatedError: there are no credentials, or they are refused.
        :raises UnavailableError: the realm is not to be trusted, or answers nonsense.
        """
        self._kept.pop(scope, None)
        found = {each.scheme: each for header in challenges for each in parse_challenges(header)}
        if (bearer := found.get("bearer")) is not None:
            self._kept[scope] = self._token(bearer, scope)
        elif "basic" in found:
            self._kept[scope] = _Kept(f"Basic {self._basic()}", float("inf"))
        else:
            raise UnauthenticatedError(
                f"cannot log in to {self._host}: it asks in no way that is known here ({', '.join(found) or 'none'})"
            )

    def _basic(self) -> str:
        if self._login is None or not self._login.user:
            raise UnauthenticatedError(
                f"cannot use {self._host}: it wants a user and a password",
                remedy="log in with `docker login`, or set DSEC_REGISTRY_AUTH to USER:PASSWORD",
            )
        return base64.b64encode(f"{self._login.user}:{self._login.password}".encode()).decode()

    def _token(self, challenge: Challenge, scope: str) -> _Kept:
        realm = challenge.parameters.get("realm", "")
        if not self._may_ask(realm):
            raise UnavailableError(
                f"cannot log in to {self._host}: it wants the credentials sent to {realm[:200]!r}, which is not https"
            )
        service = challenge.parameters.get("service", "")
        scopes = _scopes(challenge.parameters.get("scope", ""), scope)
        told = {"service": service} if service else {}
        login = self._login
        if login is not None and not login.user:
            form = {"grant_type": "refresh_token", "refresh_token": login.password, "client_id": CLIENT, **told}
            form |= {"scope": " ".join(scopes)} if scopes else {}
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            status, body = self._ask("POST", realm, headers, urlencode(form).encode())
        else:
            query = [*told.items(), *(("scope", one) for one in scopes)]
            url = realm + ("&" if urlsplit(realm).query else "?") + urlencode(query)
            headers = {} if login is None else {"Authorization": f"Basic {self._basic()}"}
            status, body = self._ask("GET", url, headers, None)
        if status in (400, 401, 403):
            who = "without credentials" if login is None else f"as {login.user or 'the token given'}"
            raise UnauthenticatedError(f"cannot log in to {self._host} {who}: it gives no token for {scope} ({status})")
        if status != 200:
            raise UnavailableError(f"cannot log in to {self._host}: {realm[:200]} answered {status}")
        return self._read(body)

    def _read(self, body: bytes) -> _Kept:
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except (msgspec.DecodeError, RecursionError):
            raise UnavailableError(f"cannot log in to {self._host}: its token service answers nonsense") from None
        token = answer.token or answer.access_token
        if not _TOKEN.fullmatch(token):
            raise UnavailableError(f"cannot log in to {self._host}: its token service gives no token")
        lasts = answer.expires_in if answer.expires_in > 0 else _TOKEN_S
        return _Kept(f"Bearer {token}", self._clock() + max(lasts - _MARGIN_S, lasts / 2))


def _scopes(challenged: str, own: str) -> list[str]:
    """One for each repository. What the registry asks for counts; of a second repository it may not speak."""
    return list(dict.fromkeys([*(challenged.split() or own.split()[:1]), *own.split()[1:]]))


def parse_challenges(header: str) -> list[Challenge]:
    """What a `WWW-Authenticate` header offers. What cannot be read ends it."""
    found: list[Challenge] = []
    position = 0
    header = header[:8192]
    while (match := _SCHEME.match(header, position)) is not None:
        position = match.end()
        parameters: dict[str, str] = {}
        while (pair := _PARAMETER.match(header, position)) is not None:
            position = pair.end()
            value = pair[3] if pair[2] is None else re.sub(r"\\(.)", r"\1", pair[2])
            parameters.setdefault(pair[1].lower(), value)
        found.append(Challenge(match[1].lower(), parameters))
    return found
