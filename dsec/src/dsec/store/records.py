"""What the store remembers of layers and images."""

from __future__ import annotations

import os

import msgspec

from libdsec.protocol.environment import ImageConfig, ImageInfo, LayerInfo, LayerKind

METADATA_NAME = "metadata.erofs"
DATA_NAME = "data.erofs"
RECORD_NAME = "layer.json"
REMOTE_NAME = "remote.json"
"""Beside a layer that came from a shared store; of its data perhaps not all is here."""
RECORD_SCHEMA = 1

MAX_CONFIG_BYTES = 128 * 1024
"""Of an image's configuration, encoded: with 128 layers it must fit into one answer, or the node could not list it."""


def config_fault(config: ImageConfig) -> str | None:
    """What keeps a configuration from being published."""
    size = len(msgspec.json.encode(config))
    if size > MAX_CONFIG_BYTES:
        return f"its configuration (variables, labels, commands) has {size} bytes, the most is {MAX_CONFIG_BYTES}"
    return None


class LayerRecord(msgspec.Struct, frozen=True):
    """A layer on this node. `metadata` and `data` are absolute paths. Both files are there and never change, but for
    the data of one that `is_remote`: it comes when it is read."""

    digest: str
    metadata: str
    data: str
    metadata_bytes: int
    data_bytes: int
    files: int
    metadata_digest: str
    """64 hex digits: SHA-256 of the metadata image."""

    @property
    def directory(self) -> str:
        return os.path.dirname(self.metadata)

    def info(self) -> LayerInfo:
        return LayerInfo(self.digest, self.metadata_bytes, self.data_bytes, self.files)


def is_remote(layer: LayerRecord) -> bool:
    """Whether its data lies in a shared store, and perhaps not all of it here."""
    return os.path.exists(os.path.join(layer.directory, REMOTE_NAME))


class ImageRecord(msgspec.Struct, frozen=True):
    """A published image; it never changes."""

    ref: str
    kind: LayerKind
    layers: tuple[LayerRecord, ...]
    """Lowest first."""
    config: ImageConfig
    created_at: float
    parent: str | None = None

    def info(self) -> ImageInfo:
        layers = tuple(layer.info() for layer in self.layers)
        return ImageInfo(self.ref, self.kind, layers, self.config, self.created_at, self.parent)


class LayerFile(msgspec.Struct, frozen=True):
    """layer.json beside the two images: everything needed to check them, without the catalogue."""

    schema: int
    generation: int
    digest: str
    metadata_digest: bytes
    metadata_bytes: int
    data_bytes: int
    chunk_size: int
    chunk_digests: bytes
    """Raw digests, joined."""
    files: int
