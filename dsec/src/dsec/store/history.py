"""How the layers of images came to be, as the catalogue remembers it: of each layer what made it, when, and for which
image. Whoever publishes says it once; a layer that is known already keeps what was said first. It goes with the layer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from libdsec.protocol.images import HistoryEntry, ImageHistory

from .records import ImageRecord

if TYPE_CHECKING:
    from .catalogue import Catalogue

TABLES: Final = """
CREATE TABLE layer_history (
    digest TEXT PRIMARY KEY REFERENCES layers ON DELETE CASCADE, made_by TEXT NOT NULL, created_at REAL NOT NULL,
    ref TEXT NOT NULL
) WITHOUT ROWID, STRICT;
CREATE TABLE layer_blobs (
    digest TEXT PRIMARY KEY REFERENCES layers ON DELETE CASCADE, blob TEXT NOT NULL, bytes INTEGER NOT NULL,
    diff_id TEXT NOT NULL
) WITHOUT ROWID, STRICT;
INSERT INTO layer_history SELECT digest, '', MIN(created_at), ref FROM image_layers JOIN images USING (ref)
GROUP BY digest;
"""
"""`layer_blobs`: what a layer is as a compressed tar of a container image, which takes long to find out."""

MAX_MADE_BY: Final = 1000
"""Characters; what is longer is cut."""


class Blob(NamedTuple):
    """A layer as a compressed tar."""

    digest: str
    bytes: int
    diff_id: str
    """The digest of the tar before it was compressed."""


def record(database: sqlite3.Connection, image: ImageRecord, made_by: Sequence[str]) -> None:
    """Within the transaction that publishes `image`; `made_by` is beside its layers, and may be shorter."""
    words = [*made_by, *[""] * len(image.layers)]
    for layer, how in zip(image.layers, words, strict=False):
        database.execute(
            "INSERT OR IGNORE INTO layer_history VALUES (?, ?, ?, ?)",
            (layer.digest, how[:MAX_MADE_BY], image.created_at, image.ref),
        )


def history(catalogue: Catalogue, ref: str) -> ImageHistory:
    """:raises ImageNotFoundError: no such image."""
    return ImageHistory(ref, entries(catalogue, catalogue.get(ref)))


def entries(catalogue: Catalogue, image: ImageRecord) -> tuple[HistoryEntry, ...]:
    """Of each of its layers; the image itself may be removed by now."""
    digests = [layer.digest for layer in image.layers]
    rows = catalogue.rows(
        f"SELECT digest, made_by, created_at, ref FROM layer_history WHERE digest IN ({', '.join('?' * len(digests))})",
        tuple(digests),
    )
    told = {digest: (made_by, created_at, first) for digest, made_by, created_at, first in rows}
    unknown = ("", image.created_at, image.ref)
    return tuple(HistoryEntry(layer.info(), *told.get(layer.digest, unknown)) for layer in image.layers)


def known_blob(catalogue: Catalogue, layer: str) -> Blob | None:
    """What the layer was as a blob when it was last made one."""
    rows = catalogue.rows("SELECT blob, bytes, diff_id FROM layer_blobs WHERE digest = ?", (layer,))
    return Blob(*rows[0]) if rows else None


def remember_blob(catalogue: Catalogue, layer: str, blob: Blob) -> None:
    """Nothing where the layer was removed meanwhile."""
    with catalogue.transaction() as database:
        database.execute(
            "INSERT OR REPLACE INTO layer_blobs SELECT digest, ?, ?, ? FROM layers WHERE digest = ?", (*blob, layer)
        )
