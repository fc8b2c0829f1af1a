"""Whom a registry is to take the user for: as Docker's client keeps it, or from the environment.

Programs that keep credentials (`credHelpers`, `credsStore`) are run here, as the user. What comes of it goes to the
node in the request, and nowhere else.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import subprocess
from typing import Final

import msgspec

from dsec.store.oci.reference import HUB, RegistryPlace, parse_place
from libdsec.protocol.errors import InvalidArgumentError, UnavailableError
from libdsec.protocol.images import RegistryLogin

VARIABLE: Final = "DSEC_REGISTRY_AUTH"
HELPER_S: Final = 60.0
MAX_BYTES: Final = 4 * 1024 * 1024
_HUB_KEY: Final = "https://index.docker.io/v1/"
_HELPER: Final = re.compile(r"[A-Za-z0-9._-]+")
_TOKEN_USER: Final = "<token>"


class _Auth(msgspec.Struct):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""


class _Config(msgspec.Struct):
    auths: dict[str, _Auth] = {}
    credHelpers: dict[str, str] = {}  # noqa: N815
    credsStore: str = ""  # noqa: N815


class _Answer(msgspec.Struct):
    Username: str = ""
    Secret: str = ""


def login_for(place: str) -> RegistryLogin | None:
    """The credentials for a source or destination that the user has named; None where there are none, or where none are
    needed.

    :raises InvalidArgumentError: it is no place, or what is kept of it cannot be read.
    :raises UnavailableError: the program that keeps them fails.
    """
    parsed = parse_place(place)
    if isinstance(parsed, RegistryPlace) and (given := os.environ.get(VARIABLE)) is not None:
        user, colon, password = given.partition(":")
        if not colon:
            raise InvalidArgumentError(f"cannot use {VARIABLE}: it must be USER:PASSWORD")
        return RegistryLogin(user, password)
    return kept_login_for(place)


def kept_login_for(place: str) -> RegistryLogin | None:
    """As `login_for`, for a place that somebody else has named: a file may name any registry, and the variable does not
    say which one it is for.
    """
    parsed = parse_place(place)
    if not isinstance(parsed, RegistryPlace):
        return None
    config = _read()
    keys = (_HUB_KEY, "index.docker.io", "docker.io") if parsed.host == HUB else (parsed.host,)
    for key in keys:
        helper = config.credHelpers.get(key) or config.credsStore
        if helper and (login := _ask(helper, key)) is not None:
            return login
    for key in keys:
        for spelling in (key, f"https://{key}", f"https://{key}/", f"https://{key}/v1/", f"https://{key}/v2/"):
            if (auth := config.auths.get(spelling)) is not None and (login := _kept(auth, spelling)) is not None:
                return login
    return None


def _read() -> _Config:
    directory = os.environ.get("DOCKER_CONFIG") or os.path.join(os.path.expanduser("~"), ".docker")
    path = os.path.join(directory, "config.json")
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=_Config)
    except FileNotFoundError:
        return _Config()
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InvalidArgumentError(f"cannot read {path}: {error}") from None


def _kept(auth: _Auth, key: str) -> RegistryLogin | None:
    if auth.identitytoken:
        return RegistryLogin("", auth.identitytoken)
    if auth.username:
        return RegistryLogin(auth.username, auth.password)
    if not auth.auth:
        return None
    try:
        user, _, password = base64.b64decode(auth.auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidArgumentError(f"cannot read the credentials that Docker's config.json has for {key}") from None
    return RegistryLogin(user, password.rstrip("\0"))


def _ask(helper: str, key: str) -> RegistryLogin | None:
    if not _HELPER.fullmatch(helper):
        raise InvalidArgumentError(f"cannot ask {helper[:100]!r} for credentials: that is no name of a program")
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run([program, "get"], input=key.encode(), capture_output=True, timeout=HELPER_S)
    except FileNotFoundError:
        raise UnavailableError(f"cannot get credentials for {key}: {program} is not installed") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"cannot get credentials for {key}: {program}: {type(error).__name__}") from None
    if done.returncode:
        # the protocol tells "there are none" by these words alone
        if b"credentials not found" in done.stdout + done.stderr:
            return None
        said = done.stderr.decode("utf-8", "replace").strip()[:200]
        raise UnavailableError(f"cannot get credentials for {key}: {program} ended with {done.returncode}: {said}")
    try:
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    except msgspec.DecodeError:
        raise UnavailableError(f"cannot get credentials for {key}: {program} answers nonsense") from None
    return RegistryLogin("" if answer.Username == _TOKEN_USER else answer.Username, answer.Secret)
