"""Where the OCI layers lie that layers of ours were made of. A push to the same registry names them again: nothing of
them is sent, and what is pushed shares its layers with the image that it was made from.

Only blobs are remembered whose bytes a pull has read and checked. What a layer of ours is like may depend on what lies
below it, as in `known`: then they stand for it over the same layers only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from dsec.store.catalogue import Catalogue

from .source import LayerBlob

_BLOBS: Final = msgspec.msgpack.Decoder(tuple[LayerBlob, ...])


class Origin(NamedTuple):
    layer: str
    """The digest of ours."""
    below: bytes
    """See `known.Known`."""
    name: str
    """Of the repository."""
    blobs: tuple[LayerBlob, ...]
    """Lowest first."""


def remember(catalogue: Catalogue, host: str, origins: Iterable[Origin]) -> None:
    """To be called when an image has the layers. Those that no image has any more by then are not remembered."""
    with catalogue.transaction() as database:
        database.executemany(
            "INSERT OR REPLACE INTO oci_origins SELECT digest, ?, ?, ?, ? FROM layers WHERE digest = ?",
            [(host, each.name, each.below, msgspec.msgpack.encode(each.blobs), each.layer) for each in origins],
        )


def find(catalogue: Catalogue, layer: str, host: str, beneath: bytes) -> list[Origin]:
    """In one registry, over what `known.below` stands for."""
    rows = catalogue.rows(
        "SELECT below, name, blobs FROM oci_origins WHERE digest = ? AND host = ? AND below IN (x'', ?) ORDER BY name",
        (layer, host, beneath),
    )
    return [Origin(layer, below, name, _BLOBS.decode(blobs)) for below, name, blobs in rows]
