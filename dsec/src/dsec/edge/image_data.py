"""Data of images that lie in the shared store: fetched ahead, counted, and forgotten beyond the node's limit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import structlog

from dsec.store.layer_data import require_whole
from dsec.store.loading.base import LayerLoader
from dsec.store.loading.cache import is_whole
from dsec.store.local import LocalStore
from dsec.store.mounts import LayerMounts
from dsec.store.records import LayerRecord, is_remote
from dsec.store.uses import Uses
from libdsec.protocol.environment import BuildProgress, ImageInfo
from libdsec.protocol.images import ImageStats, ImageStatsAnswer

from .blocking import Progress, in_thread

MAX_REFS = 100
"""Named of one layer."""

_log = structlog.get_logger("dsec.edge")


class ImageData:
    """On the edge's event loop."""

    def __init__(
        self, store: LocalStore, mounts: LayerMounts, uses: Uses, loader: LayerLoader, *, limit_bytes: int = 0
    ) -> None:
        """`limit_bytes`: 0 is no limit."""
        self._store, self._mounts, self._uses, self._loader = store, mounts, uses, loader
        self._limit_bytes = limit_bytes

    async def fetch(self, ref: str, progress: Progress) -> ImageInfo:
        """All of an image's data to this node. A cancel ends it; what came stays.

        :raises ImageNotFoundError: not published here.
        :raises DSecError: see `Loader.fetch_all`.
        """

        def fetch(step: Progress) -> ImageInfo:
            with self._store.keeping(ref) as image:
                digests = [layer.digest for layer in image.layers]

                def tell(size: int) -> None:
                    self._uses.note(digests)
                    step(BuildProgress("fetch", size))

                tell(0)
                self._loader.fetch_all(image.layers, tell)
                return image.info()

        return await in_thread(fetch, progress)

    def have_whole(self, layer: LayerRecord, tell: Callable[[int], None]) -> None:
        """All of a layer's data to this node; for a thread. `tell` gets the bytes that came, about once a second, and
        may raise. Whoever calls this keeps the layer.

        :raises DSecError: see `Loader.fetch_all`. `ConflictError`: there is nothing to fetch it from.
        """

        def told(size: int) -> None:
            self._uses.note((layer.digest,))
            tell(size)

        if not is_whole(layer):
            self._loader.fetch_all((layer,), told)
            require_whole(layer)

    async def stats(self, ref: str) -> ImageStatsAnswer:
        """Of an image's layers, or of all.

        :raises ImageNotFoundError: not published here.
        """
        return await asyncio.to_thread(self._stats, ref)

    async def verify(self, ref: str) -> ImageInfo:
        """Hold what is here of an image's layers against their digests.

        :raises ImageNotFoundError: not published here.
        :raises IntegrityError: says what is damaged.
        """

        def verify(step: Progress) -> ImageInfo:
            with self._store.keeping(ref) as image:
                for layer in image.layers:
                    step(BuildProgress("verify"))
                    self._loader.verify(layer)
                return image.info()

        return await in_thread(verify, lambda _: None)

    async def evict(self) -> int:
        """Forget data that nobody uses, the longest unused first, until what is left is within the limit. Returns the
        bytes freed."""
        if not self._limit_bytes:
            return 0
        sizes, order = await asyncio.to_thread(self._cached)
        total, freed = sum(sizes.values()), 0
        for layer in order:
            if total - freed <= self._limit_bytes:
                break
            if self._uses.just_used(layer.digest) or not await self._mounts.forget(layer.digest):
                continue
            gone: int | None = await asyncio.to_thread(self._loader.evict, layer)
            freed += gone or 0
        if freed:
            _log.info("data of layers was evicted", bytes=freed, left=total - freed)
        return freed

    def _cached(self) -> tuple[dict[str, int], list[LayerRecord]]:
        """Layers that can be fetched again: what their data takes here, and their order, the longest unused first."""
        last = self._uses.last()
        layers = {layer.digest: layer for image in self._store.catalogue.list() for layer in image.layers}
        sizes = {digest: _disk_bytes(layer) for digest, layer in layers.items() if is_remote(layer)}
        order = sorted((digest for digest in sizes if sizes[digest]), key=lambda digest: last.get(digest, 0.0))
        return sizes, [layers[digest] for digest in order]

    def _stats(self, ref: str) -> ImageStatsAnswer:
        images = self._store.catalogue.list()
        wanted = (self._store.catalogue.get(ref),) if ref else images
        refs: dict[str, list[str]] = {}
        for image in images:
            for layer in image.layers:
                refs.setdefault(layer.digest, []).append(image.ref)
        layers = {layer.digest: layer for image in wanted for layer in image.layers}
        pinned, last = self._uses.pinned(), self._uses.last()
        counted = tuple(
            self._of(layer, tuple(refs.get(digest, ())), last.get(digest, 0.0), pinned)
            for digest, layer in sorted(layers.items())
        )
        return ImageStatsAnswer(counted, sum(self._cached()[0].values()), self._limit_bytes)

    def _of(self, layer: LayerRecord, refs: tuple[str, ...], last: float, pinned: frozenset[str]) -> ImageStats:
        counts = self._loader.stats(layer)
        return ImageStats(
            layer=layer.digest,
            refs=refs[:MAX_REFS],
            source=counts.source,
            data_bytes=layer.data_bytes,
            present_bytes=counts.present_bytes,
            fetched_bytes=counts.fetched_bytes,
            requests=counts.requests,
            reads_waited=counts.reads_waited,
            wait_p50_ms=counts.wait_p50_ms,
            wait_p99_ms=counts.wait_p99_ms,
            errors=counts.errors,
            in_use=self._mounts.users(layer.digest),
            pinned=not pinned.isdisjoint(refs),
            last_used_at=last,
        )


def _disk_bytes(layer: LayerRecord) -> int:
    try:
        return os.stat(layer.data).st_blocks * 512
    except FileNotFoundError:
        return 0
