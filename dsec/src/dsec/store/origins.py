"""Where in registries the OCI layers of an image lie that was pulled: a push to the same registry names them again, so
that nothing of them is sent and what is pushed shares its layers with the image that it was made from.

That is kept for each image, and handed on to those that are made of it. It is not kept for a layer: different tars may
become the same layer here and be something else to other programs, and whoever has such a tar pulled must not decide
what others push. Only blobs count whose bytes a pull of this node has read and checked, whatever a manifest claims.

What a layer of ours is like may depend on what lies below it (`oci.known`): then its blobs stand for it over the same
layers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from .catalogue import Catalogue, Statement


class PulledBlob(msgspec.Struct, frozen=True):
    """An OCI layer as a blob."""

    digest: str
    size: int
    diff_id: str
    media_type: str


class Origin(NamedTuple):
    layer: str
    """The digest of ours."""
    below: bytes
    """See `oci.known.Known`."""
    name: str
    """Of the repository."""
    blobs: tuple[PulledBlob, ...]
    """Lowest first."""


_BLOBS: Final = msgspec.msgpack.Decoder(tuple[PulledBlob, ...])


def were_read(catalogue: Catalogue, blobs: Iterable[PulledBlob]) -> bool:
    """Whether all of them were what they are said to be when this node read them."""
    return all(
        catalogue.rows("SELECT 1 FROM oci_read WHERE blob = ? AND diff_id = ? LIMIT 1", (blob.digest, blob.diff_id))
        for blob in blobs
    )


def remember(
    catalogue: Catalogue, ref: str, host: str, read: Iterable[tuple[str, PulledBlob]], origins: Iterable[Origin]
) -> None:
    """Of an image that has just been published. `read`: blobs that were read for it, and the layer each went into."""
    with catalogue.transaction() as database:
        database.executemany(
            "INSERT OR IGNORE INTO oci_read SELECT ?, ?, digest FROM layers WHERE digest = ?",
            [(blob.digest, blob.diff_id, layer) for layer, blob in read],
        )
        database.executemany(
            "INSERT OR IGNORE INTO image_origins SELECT ref, digest, ?, ?, ?, ? FROM image_layers "
            "WHERE ref = ? AND digest = ?",
            [(host, each.name, each.below, msgspec.msgpack.encode(each.blobs), ref, each.layer) for each in origins],
        )


def handed_on(ref: str, sources: Sequence[str]) -> Statement:
    """What is to be written with an image that is made of others."""
    return (
        "INSERT OR IGNORE INTO image_origins SELECT l.ref, o.digest, o.host, o.name, o.below, o.blobs "
        f"FROM image_origins o JOIN image_layers l USING (digest) WHERE l.ref = ? AND o.ref IN "
        f"({', '.join('?' * len(sources))})",
        (ref, *sources),
    )


def find(catalogue: Catalogue, ref: str, layer: str, host: str, beneath: bytes) -> list[Origin]:
    """Of a layer of an image, in one registry, over what `oci.known.below` stands for."""
    rows = catalogue.rows(
        "SELECT below, name, blobs FROM image_origins WHERE ref = ? AND digest = ? AND host = ? "
        "AND below IN (x'', ?) ORDER BY name",
        (ref, layer, host, beneath),
    )
    return [Origin(layer, below, name, _BLOBS.decode(blobs)) for below, name, blobs in rows]
