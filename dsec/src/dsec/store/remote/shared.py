"""The node's shared store: what it is for the rooms around."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dsec.store.local import LocalStore
from dsec.store.records import ImageRecord, LayerRecord
from libdsec.protocol.environment import BuildProgress
from libdsec.protocol.errors import DSecError, UnavailableError
from libdsec.protocol.images import ImagePublished

from .beside import read_beside
from .objects import Objects
from .publish import publish_image
from .rawdata import raw_location
from .resolve import resolve_image
from .source import RemoteChunks

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
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="chunks")
        self._resolving: dict[str, asyncio.Future[ImageRecord]] = {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def publish(self, ref: str, progress: Callable[[BuildProgress], None]) -> ImagePublished:
        """See `publish_image`."""
        return await publish_image(self._objects, self._local, ref, progress, raw=self._raw)

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

    def open_source(self, layer: LayerRecord) -> RemoteChunks:
        """See `dsec.store.loading.base.Sources`."""
        remote, table = read_beside(layer)
        if remote.store != self.url:
            raise UnavailableError(
                f"cannot read layer {layer.digest}: it lies in {remote.store}, and this node's store is {self.url}",
                digest=layer.digest,
            )
        return RemoteChunks(self._objects, table, self._threads)

    def location(self, layer: LayerRecord) -> str | None:
        """See `dsec.store.loading.base.Sources`."""
        directory = self._objects.directory
        return None if directory is None else raw_location(directory, layer)
