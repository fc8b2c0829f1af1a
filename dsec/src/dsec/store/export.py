"""An image's whole tree as a tar."""

from __future__ import annotations

from collections.abc import Callable, Generator

from .flatten import Flattened
from .layer_data import require_whole
from .local import LocalStore
from .sinks.tar import Piece, tar_pieces


def export_image(store: LocalStore, ref: str, tick: Callable[[], None]) -> Generator[Piece, None, None]:
    """The tar in pieces, each valid until the next is asked for; blocking. `tick` is called every few thousand names
    while metadata is read.

    :raises ImageNotFoundError: no such image.
    :raises ConflictError: a layer's data is not all on this node.
    :raises IntegrityError: a layer is damaged.
    """
    with store.keeping(ref) as image:
        for layer in image.layers:
            require_whole(layer)
        yield from tar_pieces(Flattened(image.layers, tick=tick))
