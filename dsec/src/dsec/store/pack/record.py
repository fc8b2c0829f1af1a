"""Which step packed an image. A step that is said again after a server died in it finds what it published; anybody else
finds that the name is taken."""

from __future__ import annotations

from typing import Final

import msgspec

from dsec.store.catalogue import Catalogue, Statement, already_exists
from libdsec.protocol.images import PackedDiff


def earlier(catalogue: Catalogue, ref: str, maker: str) -> PackedDiff | None:
    """What the step `maker` was, or would have been, told of the image; None where the name is free.

    :raises AlreadyExistsError: something else has the name.
    """
    if not catalogue.exists(ref):
        return None
    rows = catalogue.rows("SELECT answer FROM packed WHERE ref = ? AND maker = ?", (ref, maker))
    if not rows:
        raise already_exists(ref)
    return _decode(rows[0][0])


def recorded(answer: PackedDiff, maker: str) -> Statement:
    """What is to be written with the image."""
    return "INSERT INTO packed VALUES (?, ?, ?)", (answer.image.ref, maker, msgspec.msgpack.encode(answer))


_decode: Final = msgspec.msgpack.Decoder(PackedDiff).decode
