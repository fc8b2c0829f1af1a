"""A layer as a source: what one of our layers holds, with what it hides of layers below."""

from __future__ import annotations

from collections.abc import Callable, Generator

from dsec.store.flatten import Flattened, nothing
from dsec.store.records import LayerRecord
from dsec.store.sources.base import SourceItem


class LayerSource:
    """Read a layer back from its two files: entries, hard links, whiteouts and opaque directories.

    A layer built of it is the same one again, where the first one was built with at most `chunks.MAX_OPEN` chunks open
    at a time. Every chunk is checked against its digest before its bytes are given out.
    """

    def __init__(self, layer: LayerRecord, tick: Callable[[], None] = nothing) -> None:
        """`tick`: see `Flattened`."""
        self._layer = layer
        self._tick = tick

    def entries(self) -> Generator[SourceItem, None, None]:
        """See `Source.entries`.

        :raises IntegrityError: a file of the layer is not what its digest says, or is damaged.
        :raises ConflictError: not all of its data is on this node; it has to be fetched first.
        """
        yield from Flattened((self._layer,), hiding=True, below=None, tick=self._tick).entries()
