"""An image's whole tree as a tar."""

from __future__ import annotations

from collections.abc import Callable, Generator

from .flatten import Flattened
from .layer_data import Whole, require_whole
from .local import LocalStore
from .sinks.tar import Piece, tar_pieces


def export_image(
    store: LocalStore, ref: str, tick: Callable[[], None], whole: Whole = require_whole
) -> Generator[Piece, None, None]:
    """The tar in pieces, each valid until the next is asked for; blocking. `tick` is called every few thousand names
    while metadata is read, `whole` before a layer's data is.

    :raises ImageNotFoundError: no such image.
    :raises DSecError: what `whole` raises; `ConflictError` where a layer's data is not all on this node.
    :raises IntegrityError: a layer is damaged.
    """
    with store.keeping(ref) as image:
        yield from tar_pieces(Flattened(image.layers, tick=tick, whole=whole))
