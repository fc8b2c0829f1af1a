"""The loader of a store whose layers are all made or pulled here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsec.store.mounts import mount_checked
from dsec.store.records import LayerRecord
from dsec.store.verify import check_whole

from .base import LayerCounts


class WholeLayers:
    """A `LayerLoader` that has nothing to fetch from."""

    def mount(self, layer: LayerRecord) -> int:
        return mount_checked(layer)

    def adopt(self, digest: str) -> None:
        """Its data stays as it is."""

    def unmounted(self, digest: str) -> None:
        """Nothing to be closed."""

    def fetch_all(self, layers: Sequence[LayerRecord], progress: Callable[[int], None]) -> None:
        progress(sum(layer.data_bytes for layer in layers))

    def verify(self, layer: LayerRecord) -> None:
        check_whole(layer)

    def evict(self, layer: LayerRecord) -> int | None:
        """It could not be had again."""
        return None

    def stats(self, layer: LayerRecord) -> LayerCounts:
        return LayerCounts("local", layer.data_bytes, 0, 0, 0, 0.0, 0.0, 0)

    def close(self) -> None:
        """Nothing runs."""
