"""What the edge needs of the layer store, and the store as that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import NamedTuple, Protocol

import structlog

from dsec.store.collect import Collector
from dsec.store.compose import Composition, compose
from dsec.store.diff import diff_images
from dsec.store.export import export_image
from dsec.store.history import history
from dsec.store.layer_data import Whole
from dsec.store.loading.base import LayerLoader
from dsec.store.loading.local import WholeLayers
from dsec.store.local import LocalStore
from dsec.store.mounts import LayerMounts
from dsec.store.oci.pull import Puller
from dsec.store.pack.order import Packing
from dsec.store.remote.browse import Page
from dsec.store.remote.shared import SharedStore
from dsec.store.sinks.tar import Piece
from dsec.store.uses import Uses
from libdsec.protocol.environment import BuildProgress, ImageBuildRequest, ImageConfig, ImageInfo
from libdsec.protocol.errors import CapacityError, ImageNotFoundError, UnsupportedOperationError
from libdsec.protocol.images import (
    Change,
    ChangeCount,
    ImageGcAnswer,
    ImageHistory,
    ImagePublished,
    ImagePullRequest,
    ImagePushed,
    ImagePushRequest,
    ImageStatsAnswer,
    PackedDiff,
)
from libdsec.protocol.spec import SandboxSpec

from .blocking import in_thread
from .image_data import ImageData
from .packing import Capture, Uppers, changes_in, pack_into

MAX_COMPOSED = 1024

Tick = Callable[[], None]

_Key = tuple[str, str | None, tuple[str, ...]]

_log = structlog.get_logger("dsec.edge")


class Composed(NamedTuple):
    """What a sandbox is made of."""

    layers: tuple[str, ...]
    """Digests, lowest first."""
    config: ImageConfig


class Images(Protocol):
    """Published images. What is not awaited is quick."""

    async def compose(self, spec: SandboxSpec) -> Composed:
        """:raises ImageNotFoundError: one of the named images is not published here.
        :raises InvalidArgumentError: a bad reference, or an image of another kind than its place asks for."""

    async def build(self, request: ImageBuildRequest, progress: Callable[[BuildProgress], None]) -> ImageInfo:
        """Build and publish. A cancel ends it and leaves nothing. `progress` is called on the event loop every
        `blocking.PROGRESS_S`, so that of what is over sooner nothing may be told.

        :raises DSecError: the request or the source is wrong, the name is taken, the disk is full; nothing is left."""

    async def pull(self, request: ImagePullRequest, progress: Callable[[BuildProgress], None]) -> ImageInfo:
        """From a registry, a layout or an archive, as `build` in all else.

        :raises DSecError: see `dsec.store.oci.pull`; nothing is left."""

    async def push(self, request: ImagePushRequest, progress: Callable[[BuildProgress], None]) -> ImagePushed:
        """Data that only the shared store has is fetched.

        :raises DSecError: see `dsec.store.oci.push`; nothing is left, but for blobs that a registry has taken."""

    async def bring(self, refs: Sequence[str]) -> None:
        """Images that only the shared store has come here, without their data. A node without such a store does
        nothing.

        :raises ImageNotFoundError: neither has it.
        :raises DSecError: the shared store cannot be reached, or what it has is damaged."""

    def export(self, ref: str, tick: Tick) -> Generator[Piece, None, None]:
        """A tar of its tree. A blocking generator, for a thread; `tick` is called by it and may raise. Data that only
        the shared store has is fetched.

        :raises DSecError: see `dsec.store.export`."""

    def diff(self, a: str, b: str, tick: Tick) -> Generator[Change, None, None]:
        """What turns `a` into `b`, as `export` in all else.

        :raises DSecError: see `dsec.store.diff`."""

    def history(self, ref: str) -> ImageHistory:
        """:raises ImageNotFoundError: not published here."""

    def list(self) -> tuple[ImageInfo, ...]: ...

    def inspect(self, ref: str) -> ImageInfo:
        """:raises ImageNotFoundError: not published here."""

    async def remove(self, ref: str) -> None:
        """:raises ImageNotFoundError: not published here.
        :raises ConflictError: a sandbox or another image still needs it."""

    async def publish(self, ref: str, progress: Callable[[BuildProgress], None]) -> ImagePublished:
        """To the shared store. A cancel ends it, and what was sent is not sent again.

        :raises UnsupportedOperationError: this node has no shared store, or cannot write it.
        :raises DSecError: see `dsec.store.remote.publish`."""

    async def pack(self, packing: Packing, capture: Capture, progress: Callable[[BuildProgress], None]) -> PackedDiff:
        """What a sandbox has written, as an image; said again by the same step it is the same. A cancel ends it.

        :raises DSecError: see `dsec.store.pack.pack`; nothing is left. `UnsupportedOperationError`: it is to be
            published, and this node has no shared store. What publishing raises: the image is on this node."""

    def changes(
        self, layers: Sequence[str], id_base: int, capture: Capture
    ) -> AbstractAsyncContextManager[tuple[ChangeCount, Iterator[bytes]]]:
        """What a sandbox changed over its layers: how many, and arrays of `Change` in the order of paths."""

    async def list_shared(self, after: str | None) -> Page:
        """Images of the shared store whose names are above `after`.

        :raises UnsupportedOperationError: this node has no shared store, or it cannot be listed."""

    async def pin(self, ref: str, pinned: bool) -> ImageInfo:
        """:raises ImageNotFoundError: not published here."""

    async def collect(self, keep_bytes: int, dry_run: bool) -> ImageGcAnswer:
        """Forget images that the shared store has, until the layers have `keep_bytes` at most."""

    async def tend(self) -> None:
        """Called now and then: writes down what was used, and collects what is beyond the node's limit."""

    async def fetch(self, ref: str, progress: Callable[[BuildProgress], None]) -> ImageInfo:
        """All of its data to this node. A cancel ends it; what came stays.

        :raises ImageNotFoundError: not published here.
        :raises DSecError: the shared store has it not, or cannot be reached; no room."""

    async def stats(self, ref: str) -> ImageStatsAnswer:
        """Of the layers of an image, or of all."""

    async def verify(self, ref: str) -> ImageInfo:
        """Hold every byte of its layers that is on this node against their digests.

        :raises ImageNotFoundError: not published here.
        :raises IntegrityError: says which layer, and which part of it."""


class StoreImages:
    """The node's own store."""

    def __init__(
        self,
        store: LocalStore,
        mounts: LayerMounts,
        shared: SharedStore | None = None,
        *,
        loader: LayerLoader | None = None,
        limit_bytes: int = 0,
        cache_limit_bytes: int = 0,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`mounts` knows which layers sandboxes have, and keeps those mounted that none has any more."""
        self._store = store
        self._mounts = mounts
        self._shared = shared
        self._limit_bytes = limit_bytes
        self.uses = Uses(store.catalogue, now)
        self._composed: dict[_Key, Composed] = {}
        """A published image never changes, so this stays true until one is removed: then another begins, and whoever
        had the old one before a wait composes anew."""
        self._collector = Collector(store, mounts, self.uses, shared, now, self._forget_composed)
        self._data = ImageData(store, mounts, self.uses, loader or WholeLayers(), limit_bytes=cache_limit_bytes)
        self._puller = Puller(store)
        self._uppers = Uppers()

    async def compose(self, spec: SandboxSpec) -> Composed:
        while True:
            known = self._composed
            found = await self._compose(spec, known)
            # neither gone since it was found, nor about to go
            if known is self._composed and await self._collector.chosen(found.layers):
                return found

    async def _compose(self, spec: SandboxSpec, known: dict[_Key, Composed]) -> Composed:
        key = (spec.image, spec.workspace, spec.toolkits)
        found = known.get(key)
        if found is None:
            composition = await self._composition(spec)
            found = Composed(tuple(layer.digest for layer in composition.layers), composition.config)
            if len(known) >= MAX_COMPOSED:
                known.clear()
            known[key] = found
        return found

    def _forget_composed(self) -> None:
        self._composed = {}

    async def _composition(self, spec: SandboxSpec) -> Composition:
        await self.bring((spec.image, *([spec.workspace] if spec.workspace else ()), *spec.toolkits))
        try:
            # the check of toolkits against what they lie over reads directories of every layer
            if spec.toolkits:
                return await asyncio.to_thread(compose, self._store.catalogue, spec)
            return compose(self._store.catalogue, spec)
        except ImageNotFoundError:
            if self._shared is None:
                raise
        # collected again before it was chosen: that happens no second time, since it is the last to go now
        return await self._composition(spec)

    async def build(self, request: ImageBuildRequest, progress: Callable[[BuildProgress], None]) -> ImageInfo:
        from dsec.store.images import build_image  # only a build needs it

        return await in_thread(partial(build_image, self._store, request), progress)

    async def pull(self, request: ImagePullRequest, progress: Callable[[BuildProgress], None]) -> ImageInfo:
        return await in_thread(partial(self._puller.pull, request), progress)

    async def push(self, request: ImagePushRequest, progress: Callable[[BuildProgress], None]) -> ImagePushed:
        from dsec.store.oci.push import push_image  # only a push needs it

        await self.bring((request.ref,))
        return await in_thread(lambda step: push_image(self._store, request, step, self._data.have_whole), progress)

    async def bring(self, refs: Sequence[str]) -> None:
        if self._shared is not None:
            await self._shared.bring(refs)

    def export(self, ref: str, tick: Tick) -> Generator[Piece, None, None]:
        return export_image(self._store, ref, tick, self._whole(tick))

    def diff(self, a: str, b: str, tick: Tick) -> Generator[Change, None, None]:
        return diff_images(self._store, a, b, tick, self._whole(tick))

    def _whole(self, tick: Tick) -> Whole:
        return lambda layer: self._data.have_whole(layer, lambda _: tick())

    def history(self, ref: str) -> ImageHistory:
        return history(self._store.catalogue, ref)

    def list(self) -> tuple[ImageInfo, ...]:
        return tuple(record.info() for record in self._store.catalogue.list())

    def inspect(self, ref: str) -> ImageInfo:
        return self._store.catalogue.get(ref).info()

    async def remove(self, ref: str) -> None:
        try:
            orphans = await asyncio.to_thread(self._store.remove, ref, self._mounts.in_use)
        finally:
            self._forget_composed()
        for digest in orphans:
            # an idle mount would keep the removed files' space on the disk
            await self._mounts.forget(digest)

    async def publish(self, ref: str, progress: Callable[[BuildProgress], None]) -> ImagePublished:
        return await self._required_store(f"publish {ref}").publish(ref, progress)

    async def pack(self, packing: Packing, capture: Capture, progress: Callable[[BuildProgress], None]) -> PackedDiff:
        ref, publish = packing.asked.ref, packing.asked.publish
        if publish:
            self._required_store(f"publish {ref}")
        answer = await pack_into(self._store, self._uppers, packing, capture, progress)
        if publish:
            await self.publish(ref, progress)
        return answer

    def changes(
        self, layers: Sequence[str], id_base: int, capture: Capture
    ) -> AbstractAsyncContextManager[tuple[ChangeCount, Iterator[bytes]]]:
        return changes_in(self._store, self._uppers, layers, id_base, capture)

    async def fetch(self, ref: str, progress: Callable[[BuildProgress], None]) -> ImageInfo:
        await self.bring((ref,))
        return await self._data.fetch(ref, progress)

    async def stats(self, ref: str) -> ImageStatsAnswer:
        return await self._data.stats(ref)

    async def list_shared(self, after: str | None) -> Page:
        return await self._required_store("list it").list(after)

    async def pin(self, ref: str, pinned: bool) -> ImageInfo:
        if pinned:
            await self.bring((ref,))
        await asyncio.to_thread(self.uses.pin, ref, pinned)
        return self.inspect(ref)

    async def collect(self, keep_bytes: int, dry_run: bool) -> ImageGcAnswer:
        return await self._collector.run(keep_bytes, dry_run=dry_run)

    async def tend(self) -> None:
        self._collector.note_running()
        try:
            await asyncio.to_thread(self.uses.write)
        except CapacityError as error:
            # what follows may make room; they stay noted
            _log.warning("cannot write down which layers are used", error=str(error))
        await self._data.evict()
        if self._limit_bytes and await asyncio.to_thread(self._collector.total) > self._limit_bytes:
            done = await self.collect(self._limit_bytes, False)
            if done.collected:
                _log.info("layers were collected", layers=len(done.collected), bytes=done.bytes, kept=done.kept_bytes)

    def _required_store(self, doing: str) -> SharedStore:
        if self._shared is None:
            raise UnsupportedOperationError(
                f"cannot {doing}: this node has no shared store; end its server with `dsec serve --drain` and "
                "start it with DSEC_STORE=URL"
            )
        return self._shared

    async def verify(self, ref: str) -> ImageInfo:
        return await self._data.verify(ref)
