"""The node's shared store: what it is for the rooms around."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from dsec.store.local import LocalStore
from dsec.store.records import ImageRecord, LayerRecord
from libdsec.protocol.environment import BuildProgress
from libdsec.protocol.errors import DSecError, UnavailableError
from libdsec.protocol.images import ImagePublished

from .beside import read_beside
from .browse import Page, list_images
from .known import Known
from .objects import Objects
from .publish import has_image, publish_image
from .rawdata import raw_location
from .resolve import first_error, resolve_image
from .source import RemoteChunks

_log = structlog.get_logger("dsec.store")

THREADS = max(2, min(8, os.cpu_count() or 2))
"""That decompress. Of their own: loops' threads may all wait for chunks."""


class SharedStore:
    """One a node. `publish` and `resolve` on one event loop; the loader's questions from any thread."""

    def __init__(self, objects: Objects, local: LocalStore, *, raw: bool = False) -> None:
        """`raw`: publish data files as they are too, where the store is a directory."""
        self.url = objects.url
        self._objects = objects
        self._local = local
        self._raw = raw
        self._known = Known(local.catalogue, objects.url)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="chunks")
        self._resolving: dict[str, asyncio.Future[ImageRecord]] = {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def publish(self, ref: str, progress: Callable[[BuildProgress], None]) -> ImagePublished:
        """See `publish_image`."""
        return await publish_image(self._objects, self._local, ref, progress, raw=self._raw)

    async def bring(self, refs: Sequence[str]) -> None:
        """Have these images here: those that this node has not are resolved, all at once.

        :raises DSecError: see `resolve`.
        """
        missing = [ref for ref in dict.fromkeys(refs) if not self._local.catalogue.exists(ref)]
        try:
            async with asyncio.TaskGroup() as group:
                for ref in missing:
                    group.create_task(self.resolve(ref))
        except BaseExceptionGroup as failed:
            raise first_error(failed) from None

    async def resolve(self, ref: str) -> ImageRecord:
        """See `resolve_image`. Those who ask for the same image at once wait for one of them."""
        while (running := self._resolving.get(ref)) is not None:
            await asyncio.wait([running])
            if not running.cancelled():
                return running.result()
        done: asyncio.Future[ImageRecord] = asyncio.get_running_loop().create_future()
        self._resolving[ref] = done
        try:
            image = await resolve_image(self._objects, self._local, ref)
        except DSecError as error:
            done.set_exception(error)
            done.exception()  # nobody may have waited for it
            raise
        else:
            done.set_result(image)
            return image
        finally:
            del self._resolving[ref]
            done.cancel()

    async def list(self, after: str | None) -> Page:
        """See `list_images`."""
        return await list_images(self._objects, after)

    def images(self) -> frozenset[str]:
        """Names of this node's images that the store had when it was last asked. Blocks."""
        return self._known.images()

    async def has(self, image: ImageRecord) -> bool:
        """Whether the store has this very image now. What cannot be known is a no."""
        try:
            return await has_image(self._objects, image)
        except DSecError as error:
            _log.warning("cannot look for an image in the shared store", ref=image.ref, error=str(error))
            return False

    def open_source(self, layer: LayerRecord) -> RemoteChunks:
        """See `dsec.store.loading.base.Sources`."""
        remote, table = read_beside(layer)
        if remote.store != self.url:
            raise UnavailableError(
                f"cannot read layer {layer.digest}: it lies in {remote.store}, and this node's store is {self.url}; "
                "where that has it too, remove the images that have it: they come again from there",
                digest=layer.digest,
            )
        return RemoteChunks(self._objects, table, self._threads)

    def location(self, layer: LayerRecord) -> str | None:
        """See `dsec.store.loading.base.Sources`."""
        directory = self._objects.directory
        return None if directory is None else raw_location(directory, layer)
