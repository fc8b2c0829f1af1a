"""Manifests and indexes of OCI and of Docker's schema 2: which documents and layers an image consists of.

A document's kind is what it says itself, and has to fit what it came as: one that has both a list of layers and a list
of manifests is refused. Bounds: see the constants.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from libdsec.protocol.errors import InvalidArgumentError, UnsupportedOperationError

OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
OCI_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
OCI_LAYER_GZIP: Final = f"{OCI_LAYER}+gzip"
OCI_LAYER_ZSTD: Final = f"{OCI_LAYER}+zstd"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG: Final = "application/vnd.docker.container.image.v1+json"
DOCKER_OLD: Final = "application/vnd.docker.distribution.manifest.v1"

ACCEPTED: Final = (OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_INDEX)

MAX_MANIFEST_BYTES: Final = 4 * 1024 * 1024
MAX_LAYERS: Final = 127
MAX_NESTING: Final = 2
"""Indexes one inside another."""
MAX_MANIFESTS: Final = 4096
"""Of one index."""
MAX_LAYER_BYTES: Final = 64 * 1024**3
"""Of one layer, compressed; the same bound holds for what it expands to."""

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MACHINES: Final = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "riscv64": "riscv64",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
}


class Platform(msgspec.Struct, frozen=True):
    os: str = ""
    architecture: str = ""
    variant: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename={"media_type": "mediaType"}, omit_defaults=True):
    """What a document or a layer is, and where: its digest is its name."""

    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None
    annotations: dict[str, str] | None = None


class _Document(msgspec.Struct, rename={"schema_version": "schemaVersion", "media_type": "mediaType"}):
    schema_version: int = 0
    media_type: str = ""
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] | None = None
    manifests: tuple[Descriptor, ...] | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class Index:
    manifests: tuple[Descriptor, ...]


_decode = msgspec.json.Decoder(_Document).decode


def parse_manifest(body: bytes, where: str, media_type: str = "") -> Manifest | Index:
    """A manifest or an index; `where` names it in errors, `media_type` is what it came as, where that is known.

    :raises InvalidArgumentError: it is neither, or breaks a bound.
    :raises UnsupportedOperationError: Docker's old schema, or something else that is no image.
    """
    if len(body) > MAX_MANIFEST_BYTES:
        raise broken(where, f"it has {len(body)} bytes, the most is {MAX_MANIFEST_BYTES}")
    if media_type.startswith(DOCKER_OLD):
        raise _old(where)
    try:
        document = _decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise broken(where, f"it is no manifest: {error}") from None
    if document.schema_version == 1:
        raise _old(where)
    if document.schema_version != 2:
        raise broken(where, f"its schema version is {document.schema_version}, not 2")
    if document.manifests is not None and (document.layers is not None or document.config is not None):
        raise broken(where, "it is both a manifest and an index")
    if media_type in ACCEPTED and document.media_type in ACCEPTED and media_type != document.media_type:
        raise broken(where, f"it came as {media_type} and calls itself {document.media_type}")
    kind = document.media_type or media_type
    if document.manifests is not None:
        if kind in (OCI_MANIFEST, DOCKER_MANIFEST):
            raise broken(where, f"it calls itself {kind} and is an index")
        return _index(document.manifests, where)
    if kind in (OCI_INDEX, DOCKER_INDEX) or document.config is None or document.layers is None:
        raise broken(where, "it has neither a list of manifests nor a config and layers")
    return _manifest(document.config, document.layers, where)


def choose(index: Index, where: str) -> Descriptor:
    """The index's manifest for this node.

    :raises UnsupportedOperationError: it has none; says which it has.
    """
    wanted = architecture()
    fitting = [
        each
        for each in index.manifests
        if each.platform is not None and (each.platform.os, each.platform.architecture) == ("linux", wanted)
    ]
    if fitting:
        # the plainest variant: what asks for more of the processor than that has a number that is higher
        return min(fitting, key=lambda each: each.platform.variant if each.platform is not None else "")
    if len(index.manifests) == 1 and index.manifests[0].platform is None:
        return index.manifests[0]
    there = {f"{p.os}/{p.architecture}" for p in (each.platform for each in index.manifests) if p is not None}
    only = ", ".join(sorted(there)[:20]) or "nothing"
    raise UnsupportedOperationError(
        f"cannot use {where}: it has no image for linux/{wanted}, only for {only}",
        wanted=f"linux/{wanted}",
    )


def architecture() -> str:
    """This node's, as image documents call it."""
    machine = platform.machine()
    return _MACHINES.get(machine, machine)


def check_descriptors(descriptors: Sequence[Descriptor], where: str, most: int) -> None:
    """:raises InvalidArgumentError: a digest that is none or of another kind, a size that cannot be."""
    for each in descriptors:
        if not _DIGEST.fullmatch(each.digest):
            raise broken(where, f"{each.digest[:100]!r} is no SHA-256 digest")
        if not 0 <= each.size <= most:
            raise broken(where, f"{each.digest} has a size of {each.size} bytes, the most is {most}")


def broken(where: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"cannot use {where}: {why}", field="source")


def _index(manifests: tuple[Descriptor, ...], where: str) -> Index:
    if len(manifests) > MAX_MANIFESTS:
        raise broken(where, f"it names {len(manifests)} manifests, the most is {MAX_MANIFESTS}")
    check_descriptors(manifests, where, MAX_MANIFEST_BYTES)
    return Index(manifests)


def _manifest(config: Descriptor, layers: tuple[Descriptor, ...], where: str) -> Manifest:
    if config.media_type not in (OCI_CONFIG, DOCKER_CONFIG, ""):
        raise UnsupportedOperationError(
            f"cannot use {where}: it is no container image, its config is {config.media_type[:100]!r}"
        )
    if len(layers) > MAX_LAYERS:
        raise broken(where, f"it has {len(layers)} layers, the most is {MAX_LAYERS}")
    check_descriptors([config], where, MAX_MANIFEST_BYTES)
    check_descriptors(layers, where, MAX_LAYER_BYTES)
    for layer in layers:
        if not layer.media_type.startswith(_LAYER_TYPES) or layer.media_type.endswith("+encrypted"):
            raise UnsupportedOperationError(
                f"cannot use {where}: its layer {layer.digest} is {layer.media_type[:100]!r}, no tar of files"
            )
    return Manifest(config, layers)


_LAYER_TYPES: Final = (
    "application/vnd.oci.image.layer.",
    "application/vnd.docker.image.rootfs.",
)


def _old(where: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"cannot use {where}: its manifest is of Docker's schema 1, which is obsolete; push it again with a tool of "
        "this decade (`skopeo copy --format oci`)"
    )
