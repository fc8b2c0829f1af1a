"""How images outside are written: `docker://HOST[:PORT]/NAME:TAG` or `…@sha256:…`, `oci:DIR[:TAG]`,
`oci-archive:FILE[:TAG]`, `docker-archive:FILE[:NAME:TAG]`.

A registry's host may be left out as with Docker: then it is Docker Hub, and a name of one part lies in `library/`.
Paths are absolute and hold no colon, since one ends them.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Literal

from libdsec.protocol.environment import require_not_cached
from libdsec.protocol.errors import InvalidArgumentError

HUB: Final = "registry-1.docker.io"
HUB_NAMES: Final = ("docker.io", "index.docker.io", HUB)

_NAME: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9a-fA-F:]{2,45}\])(?::(\d{1,5}))?")
_LAYOUT_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,383}")
_MOST: Final = 4096

Scheme = Literal["oci", "oci-archive", "docker-archive"]


@dataclass(frozen=True, slots=True)
class RegistryPlace:
    """An image in a registry, by tag or, where that is given, by digest."""

    host: str
    """With its port, if one was given; what is connected to."""
    name: str
    tag: str
    digest: str

    @property
    def reference(self) -> str:
        return self.digest or self.tag

    def __str__(self) -> str:
        return f"docker://{self.host}/{self.name}{'@' if self.digest else ':'}{self.reference}"


@dataclass(frozen=True, slots=True)
class FilePlace:
    """An image in a directory or a tar of this node."""

    scheme: Scheme
    path: str
    tag: str
    """Which of those there; may be empty where there is one."""

    def __str__(self) -> str:
        return f"{self.scheme}:{self.path}" + f":{self.tag}" * bool(self.tag)


Place = RegistryPlace | FilePlace


def parse_place(text: str) -> Place:
    """:raises InvalidArgumentError: not a place; says what it must look like."""
    scheme, colon, rest = text[:_MOST].partition(":")
    if len(text) > _MOST or not colon or "\0" in text:
        raise _unreadable(text, "it must be docker://HOST/NAME:TAG, oci:DIR, oci-archive:FILE or docker-archive:FILE")
    if scheme == "docker":
        if not rest.startswith("//"):
            raise _unreadable(text, "it must be docker://HOST/NAME:TAG")
        return _registry(text, rest[2:])
    if scheme == "oci":
        return _file(text, "oci", rest)
    if scheme == "oci-archive":
        return _file(text, "oci-archive", rest)
    if scheme == "docker-archive":
        return _file(text, "docker-archive", rest)
    raise _unreadable(text, "it must begin with docker://, oci:, oci-archive: or docker-archive:")


def local_name(outside: str) -> str:
    """What an image that is called `outside` elsewhere (`HOST/NAME:TAG`, `NAME:TAG`) is called here: its name and tag.
    Empty where that is no name here, or one by which builds find what their steps have made: nobody else may say that.
    """
    host, slash, rest = outside.partition("/")
    name = rest if slash and _is_host(host) else outside
    if slash and host in HUB_NAMES:
        name = name.removeprefix("library/")
    try:
        return str(require_not_cached(name))
    except InvalidArgumentError:
        return ""


def place_name(place: RegistryPlace) -> str:
    """What an image of a registry is called here; empty where it was given by digest alone."""
    short = place.name.removeprefix("library/") if place.host in HUB_NAMES else place.name
    return local_name(f"localhost/{short}:{place.tag}") if place.tag else ""


def is_loopback(host: str) -> bool:
    """Whether HOST or HOST:PORT is this machine. Of names only `localhost`: what another one leads to can change."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _registry(text: str, rest: str) -> RegistryPlace:
    name, at, digest = rest.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _unreadable(text, "what follows @ must be sha256: and 64 hexadecimal digits")
    first, slash, path = name.partition("/")
    host = HUB
    if slash and _is_host(first):
        host, name = first, path
        match = _HOST.fullmatch(host)
        if match is None or int(match[1] or "1") not in range(1, 65536):
            raise _unreadable(text, f"{first!r} is no host")
    name, colon, tag = name.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _unreadable(text, f"{tag!r} is no tag")
    if not colon and not at:
        raise _unreadable(text, "it must end in :TAG or @sha256:…; a tag is never guessed")
    if host in HUB_NAMES:
        host = HUB
        name = name if "/" in name else f"library/{name}"
    if len(name) > 255 or not _NAME.fullmatch(name):
        raise _unreadable(text, f"{name!r} is no name in a registry")
    return RegistryPlace(host, name, tag, digest)


def _is_host(first: str) -> bool:
    return first == "localhost" or "." in first or ":" in first


def _file(text: str, scheme: Scheme, rest: str) -> FilePlace:
    path, colon, tag = rest.partition(":")
    if not path.startswith("/"):
        raise _unreadable(text, "the path must be absolute")
    if colon and not _LAYOUT_TAG.fullmatch(tag):
        raise _unreadable(text, f"{tag!r} is no tag (a path cannot hold a colon)")
    return FilePlace(scheme, path, tag)


def _unreadable(text: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"cannot use {text[:300]!r}: {why}", field="source")
