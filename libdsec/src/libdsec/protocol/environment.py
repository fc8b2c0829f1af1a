"""Image references and layers.

A name `NAME:TAG` points at an immutable published image: an ordered list of layers, a default configuration, a parent.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from .errors import InvalidArgumentError

LayerKind = Literal["base", "workspace", "toolkit"]

_NAME = r"[a-z0-9]+(?:[._-][a-z0-9]+)*(?:/[a-z0-9]+(?:[._-][a-z0-9]+)*)*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_REFERENCE = re.compile(rf"(?P<name>{_NAME}):(?P<tag>{_TAG})")


class ImageRef(msgspec.Struct, frozen=True, order=True):
    name: str
    tag: str

    def __str__(self) -> str:
        return f"{self.name}:{self.tag}"


def parse_ref(text: str) -> ImageRef:
    """`repo/sphinx-9658:v1` → its name and tag.

    :raises InvalidArgumentError: not of the form NAME:TAG; a tag is never guessed, since names are immutable.
    """
    match = _REFERENCE.fullmatch(text) if len(text) <= 384 else None
    if match is None:
        raise InvalidArgumentError(
            f"cannot read image reference {text[:200]!r}: it must be NAME:TAG, "
            "the name in lower-case letters, digits and . _ - /",
            field="image",
        )
    return ImageRef(match["name"], match["tag"])


BUILD_CACHE = "build-cache"
"""What the names of a build's steps begin with. What has such a name is taken for what the step made."""


def require_not_cached(text: str) -> ImageRef:
    """As `parse_ref`, of a name that somebody gives to an image that no step has made.

    :raises InvalidArgumentError: also where it is a name of the cache.
    """
    ref = parse_ref(text)
    if ref.name.partition("/")[0] == BUILD_CACHE:
        raise InvalidArgumentError(
            f"cannot call an image {text}: names that begin with {BUILD_CACHE}/ are the cache's of builds; "
            "give another one",
            field="ref",
        )
    return ref


class ImageConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """Defaults of a sandbox made from the image; the last ones are what an OCI image says beside them, kept so that a
    push gives them back."""

    env: dict[str, str] = {}
    cwd: str = "/"
    user: str = "root"
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    exposed_ports: tuple[str, ...] = ()
    stop_signal: str = ""


class LayerInfo(msgspec.Struct, frozen=True):
    digest: str
    """`sha256:` and 64 hex digits, over {generation, metadata digest, chunk size, chunk digests}."""
    metadata_bytes: int
    data_bytes: int
    files: int


class ImageInfo(msgspec.Struct, frozen=True):
    ref: str
    kind: LayerKind
    layers: tuple[LayerInfo, ...]
    """Lowest first."""
    config: ImageConfig
    created_at: float
    parent: str | None = None


class ImageBuildRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """image.build. EVENT frames of `BuildProgress` may precede the `ImageInfo`."""

    ref: str
    source: str
    """`release:bookworm` (Debian or Ubuntu), `dir:/path`, `tar:/path` (compressed or not); paths are the node's.
    `image:NAME:TAG` is that image's layers with another name and configuration, `empty:/` a root directory with nothing
    in it."""
    kind: LayerKind = "base"
    packages: tuple[str, ...] = ()
    """Of a release: installed beside the minimal set."""
    mirror: str | None = None
    """Of a release; None takes the host's own from its apt configuration."""
    config: ImageConfig = ImageConfig()


class BuildProgress(msgspec.Struct, frozen=True):
    stage: str
    """`fetch`, `write`, `merge`, `pack`, `send`, `publish`."""
    bytes_done: int = 0
    files_done: int = 0
    bytes_total: int = 0
    """What `bytes_done` goes to, where that is known."""


class ImageNameRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """image.inspect, image.remove and image.verify."""

    ref: str


class ImageListRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    after: str | None = None
    """Only references above this one: the next page."""
    store: bool = False
    """Those of the node's shared store instead of the node's own."""


class ImageList(msgspec.Struct, frozen=True):
    """One page, in the order of references; a page fits into one frame."""

    images: tuple[ImageInfo, ...]
    next: str | None = None
    """Not None: there are more, ask again with this as `after`."""
