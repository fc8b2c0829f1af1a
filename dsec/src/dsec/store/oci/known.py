"""Which of our layers were made of which OCI layers, so that nothing is fetched or converted twice.

The key is the digests of the uncompressed OCI layers that a layer stands for, one or, where consecutive ones were
merged, several. What a layer is like may depend on what lies below it: directories that it does not describe are like
those below, and of a merged layer at the very bottom what hides nothing is left out. Such a layer is known together
with its `below`, a digest over everything beneath; any other has an empty one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dsec.store.catalogue import Catalogue
from libdsec.protocol.environment import LayerKind


class Known(NamedTuple):
    diff_ids: tuple[str, ...]
    below: bytes
    digest: str


def below(kind: LayerKind, diff_ids: Sequence[str]) -> bytes:
    """What stands for these layers beneath another one; only a base has nothing at all beneath them."""
    return hashlib.sha256((b"bottom" if kind == "base" else b"upper") + _raw(diff_ids)).digest()


def find(catalogue: Catalogue, diff_ids: Sequence[str], beneath: bytes) -> Known | None:
    """The layer that was made of these, and still is in an image."""
    rows = catalogue.rows(
        "SELECT below, digest FROM oci_layers WHERE diff_ids = ? AND below IN (x'', ?) ORDER BY below",
        (_raw(diff_ids), beneath),
    )
    return Known(tuple(diff_ids), *rows[0]) if rows else None


def remember(catalogue: Catalogue, made: Iterable[Known]) -> None:
    """To be called when an image has them. One that no image has any more by then is not remembered."""
    with catalogue.transaction() as database:
        database.executemany(
            "INSERT OR REPLACE INTO oci_layers SELECT ?, ?, digest FROM layers WHERE digest = ?",
            [(_raw(each.diff_ids), each.below, each.digest) for each in made],
        )


def _raw(diff_ids: Sequence[str]) -> bytes:
    return b"".join(bytes.fromhex(diff_id.removeprefix("sha256:")) for diff_id in diff_ids)
