"""An image outside, opened: what it consists of, and its layers as streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.images import RegistryLogin

from .blobs import Verified
from .config import parse_config
from .connection import nothing
from .manifest import MAX_NESTING, Descriptor, Index, broken, choose, parse_manifest
from .reference import Place, RegistryPlace, place_name
from .registry import Registry


class LayerBlob(msgspec.Struct, frozen=True):
    """A layer where it lies."""

    digest: str
    """Of the blob, mostly compressed; empty where only the uncompressed bytes have one."""
    size: int
    diff_id: str
    """The uncompressed bytes' digest."""
    media_type: str = ""
    path: str = ""
    """In a tar of `docker save`."""


class Resolved(msgspec.Struct, frozen=True):
    """An image, known."""

    digest: str
    """Of its manifest, or of its config where it has none."""
    config: ImageConfig
    layers: tuple[LayerBlob, ...]
    """Lowest first."""
    made_by: tuple[str, ...]
    name: str
    """What it would be called here; empty where nothing suggests a name."""


class ImageSource(Protocol):
    """For one thread; to be closed."""

    def resolve(self) -> Resolved:
        """Read its documents, all of them checked.

        :raises DSecError: it is not there, not for this node, broken, or not what its digests say."""

    def open_layer(self, layer: LayerBlob, told: Callable[[int], None]) -> Verified:
        """One of `resolve`'s layers, to be closed. `told` is called with the bytes of each read and may raise."""

    def close(self) -> None: ...


def open_source(
    place: Place, *, login: RegistryLogin | None = None, plain_http: bool = False, pulse: Callable[[], None] = nothing
) -> ImageSource:
    """:raises InvalidArgumentError: there is nothing of that kind there, or plain http is asked for elsewhere."""
    from .layout import DockerSource, LayoutSource  # which stand on this module

    if isinstance(place, RegistryPlace):
        return RegistrySource(place, Registry(place, login=login, plain_http=plain_http, pulse=pulse))
    return DockerSource(place) if place.scheme == "docker-archive" else LayoutSource(place)


class RegistrySource:
    """See `ImageSource`."""

    def __init__(self, place: RegistryPlace, registry: Registry) -> None:
        self._place = place
        self._registry = registry

    def close(self) -> None:
        self._registry.close()

    def resolve(self) -> Resolved:
        top = self._registry.manifest(self._place.reference)
        return resolve_documents(
            str(self._place), top.body, top.media_type, self._document, place_name(self._place), top.digest
        )

    def open_layer(self, layer: LayerBlob, told: Callable[[int], None]) -> Verified:
        return self._registry.blob(layer.digest, layer.size, told)

    def _document(self, descriptor: Descriptor) -> bytes:
        if "manifest" in descriptor.media_type or "index" in descriptor.media_type:
            return self._registry.manifest(descriptor.digest).body
        stream = self._registry.blob(descriptor.digest, descriptor.size)
        try:
            content = bytearray()
            while part := stream.read(descriptor.size + 1):
                content += part
            return bytes(content)
        finally:
            stream.close()


def resolve_documents(
    where: str,
    body: bytes,
    media_type: str,
    fetch: Callable[[Descriptor], bytes],
    name: str,
    digest: str = "",
) -> Resolved:
    """From the topmost document to the image for this node. `fetch` gives documents, checked."""
    document = parse_manifest(body, where, media_type)
    nesting = 0
    while isinstance(document, Index):
        nesting += 1
        if nesting > MAX_NESTING:
            raise broken(where, f"it has more than {MAX_NESTING} indexes one in another")
        descriptor = choose(document, where)
        document = parse_manifest(fetch(descriptor), where, descriptor.media_type)
        digest = descriptor.digest
    config = parse_config(fetch(document.config), where)
    if len(config.diff_ids) != len(document.layers):
        raise broken(
            where, f"its manifest has {len(document.layers)} layers, its config {len(config.diff_ids)} digests of such"
        )
    layers = [
        LayerBlob(layer.digest, layer.size, diff_id, layer.media_type)
        for layer, diff_id in zip(document.layers, config.diff_ids, strict=True)
    ]
    return Resolved(digest, config.config, tuple(layers), config.made_by, name)
