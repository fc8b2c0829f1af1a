"""An image's manifest in the store: JSON, written once under the image's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from dsec.store.compose import MAX_LAYERS
from dsec.store.history import MAX_MADE_BY
from dsec.store.records import ImageRecord, LayerRecord, config_fault
from libdsec.protocol.environment import ImageConfig, LayerKind, parse_ref
from libdsec.protocol.errors import IntegrityError, InvalidArgumentError, UnsupportedOperationError

NAMES = "names"
"""Below it manifests lie."""
SCHEMA = 1
MAX_MANIFEST_BYTES = 1024 * 1024

_Digest = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
_Hex = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class ManifestLayer(msgspec.Struct, frozen=True, omit_defaults=True):
    digest: _Digest
    metadata_bytes: _Count
    data_bytes: _Count
    files: _Count
    metadata_digest: _Hex
    made_by: Annotated[str, msgspec.Meta(max_length=MAX_MADE_BY)] = ""
    """In words: how it came to be."""


class Manifest(msgspec.Struct, frozen=True):
    """Fields that are not known are passed over."""

    schema: int
    ref: str
    kind: LayerKind
    parent: str | None
    created_at: float
    config: ImageConfig
    layers: Annotated[tuple[ManifestLayer, ...], msgspec.Meta(min_length=1, max_length=MAX_LAYERS)]
    """Lowest first."""

    def says_the_same(self, other: Manifest) -> bool:
        """When and how it was made does not matter."""
        return _of_content(self) == _of_content(other)


def _of_content(manifest: Manifest) -> Manifest:
    layers = tuple(msgspec.structs.replace(layer, made_by="") for layer in manifest.layers)
    return msgspec.structs.replace(manifest, created_at=0.0, layers=layers)


class _Schema(msgspec.Struct):
    schema: int


def manifest_path(ref: str) -> str:
    """:raises InvalidArgumentError: not a name with a tag."""
    parsed = parse_ref(ref)
    # no part of a name begins with an underscore: tags and longer names never meet
    return f"{NAMES}/{parsed.name}/_tags/{parsed.tag}"


def layer_path(digest: str, name: str) -> str:
    return f"layers/{digest.removeprefix('sha256:')}/{name}"


def facts_of(layer: LayerRecord, made_by: str = "") -> ManifestLayer:
    return ManifestLayer(
        layer.digest, layer.metadata_bytes, layer.data_bytes, layer.files, layer.metadata_digest, made_by
    )


def manifest_of(image: ImageRecord, made_by: Sequence[str] = ()) -> Manifest:
    """`made_by` is beside the layers, and may be shorter."""
    words = [*made_by, *[""] * len(image.layers)]
    layers = tuple(facts_of(layer, how) for layer, how in zip(image.layers, words, strict=False))
    return Manifest(SCHEMA, image.ref, image.kind, image.parent, image.created_at, image.config, layers)


def encode_manifest(manifest: Manifest) -> bytes:
    """:raises InvalidArgumentError: its configuration is too large."""
    content = msgspec.json.encode(manifest)
    if len(content) > MAX_MANIFEST_BYTES:
        raise InvalidArgumentError(
            f"cannot publish {manifest.ref}: its manifest has {len(content)} bytes, the most is {MAX_MANIFEST_BYTES}",
            ref=manifest.ref,
        )
    return content


def decode_manifest(content: bytes, ref: str) -> Manifest:
    """:raises IntegrityError: it is damaged, or another image's.
    :raises UnsupportedOperationError: of a newer schema."""
    try:
        schema = msgspec.json.decode(content, type=_Schema).schema
        if schema != SCHEMA:
            raise UnsupportedOperationError(
                f"cannot use {ref} of the shared store: its manifest is of schema {schema}, this DSec knows {SCHEMA}; "
                "use the newer DSec",
                ref=ref,
            )
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _damaged(ref, str(error)) from None
    if manifest.ref != ref:
        raise _damaged(ref, f"it is that of {manifest.ref[:200]!r}")
    if (fault := config_fault(manifest.config)) is not None:
        raise _damaged(ref, fault)
    return manifest


def _damaged(ref: str, why: str) -> IntegrityError:
    return IntegrityError(f"cannot use {ref} of the shared store: its manifest is damaged: {why}", ref=ref)
