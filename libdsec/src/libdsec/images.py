"""The client's calls about images that come from elsewhere or go there."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, BinaryIO

import msgspec

from ._changes import read_changes
from ._exporting import export
from ._transport.channel import Channel
from .protocol.environment import BuildProgress, ImageInfo, ImageNameRequest, LayerKind
from .protocol.frames import STDOUT
from .protocol.images import (
    MERGE_BYTES,
    Change,
    ImageDiffRequest,
    ImageExportRequest,
    ImageFetchRequest,
    ImageGcAnswer,
    ImageGcRequest,
    ImageHistory,
    ImagePinRequest,
    ImagePublished,
    ImagePublishRequest,
    ImagePullRequest,
    ImagePushed,
    ImagePushRequest,
    ImageStats,
    ImageStatsAnswer,
    ImageStatsRequest,
    RegistryLogin,
)

SILENCE_S = 900.0
"""Without a word of progress."""
_GC_S = 3600.0

Progress = Callable[[BuildProgress], None]

_decode_progress = msgspec.msgpack.Decoder(BuildProgress).decode


class ImageCalls:
    """A part of `DSecClient`."""

    _channel: Channel

    async def pull_image(
        self,
        source: str,
        ref: str = "",
        *,
        kind: LayerKind = "base",
        login: RegistryLogin | None = None,
        plain_http: bool = False,
        merge_bytes: int = MERGE_BYTES,
        progress: Progress | None = None,
    ) -> ImageInfo:
        """Make an image of containers one of the node's: `docker://HOST[:PORT]/NAME:TAG` or `…@sha256:…`,
        `oci:DIR[:TAG]`, `oci-archive:FILE`, `docker-archive:FILE`; paths are the node's and absolute. Without a `ref`
        it is called as in the source. `plain_http` is for registries on the node itself.

        :raises AlreadyExistsError: the name is taken; published images never change.
        :raises NotFoundError: the registry or the archive has no such image.
        :raises UnauthenticatedError, PermissionDeniedError: the registry wants other credentials.
        :raises UnsupportedOperationError: the image is for other processors.
        :raises IntegrityError: what came is not what its digest says.
        """
        request = ImagePullRequest(source, ref, kind, login, plain_http, merge_bytes)
        info: ImageInfo = await self._with_progress("image.pull", request, progress)
        return info

    async def push_image(
        self,
        ref: str,
        destination: str,
        *,
        login: RegistryLogin | None = None,
        plain_http: bool = False,
        progress: Progress | None = None,
    ) -> ImagePushed:
        """Put an image of the node where container engines take it from: `docker://HOST[:PORT]/NAME:TAG`,
        `oci:DIR[:TAG]`, `oci-archive:FILE[:TAG]`; paths are the node's and absolute. What is there already is not sent
        again; data that only the node's shared store has is fetched. `plain_http` is for registries on the node itself.

        :raises ImageNotFoundError: neither the node nor its shared store has such an image.
        :raises UnauthenticatedError, PermissionDeniedError: the registry wants other credentials.
        :raises InvalidArgumentError: a name in the image cannot be in a layer, or the destination is none.
        :raises UnavailableError: the registry or the shared store cannot be reached.
        """
        request = ImagePushRequest(ref, destination, login, plain_http)
        pushed: ImagePushed = await self._with_progress("image.push", request, progress)
        return pushed

    async def export_image(
        self, ref: str, file: str | os.PathLike[str] | BinaryIO, *, progress: Callable[[int], None] | None = None
    ) -> int:
        """Write an image's whole tree as a tar: into a local file of that name, which is there when all of it is, or
        into one that is open for writing. Returns its size in bytes; `progress` is told it as it grows. Data that
        only the node's shared store has is fetched.

        :raises ImageNotFoundError: neither the node nor its shared store has such an image.
        :raises UnavailableError: the shared store cannot be reached.
        :raises FileOperationError: the file cannot be written.
        """
        start = partial(self._channel.stream, "image.export", ImageExportRequest(ref), (STDOUT,))
        return await export(start, "image.export", file, progress)

    async def diff_images(self, a: str, b: str) -> AsyncGenerator[Change]:
        """What turns the image `a` into `b`, in the order of paths: a directory before what is in it. A time alone is
        no change; of a directory that is gone only itself is told. Data that only the node's shared store has
        is fetched where it has to be compared.

        :raises ImageNotFoundError: neither the node nor its shared store has one of them.
        """
        exchange = await self._channel.stream("image.diff", ImageDiffRequest(a, b), (STDOUT,))
        async with aclosing(read_changes(exchange, "image.diff")) as changes:
            async for change in changes:
                yield change

    async def image_history(self, ref: str) -> ImageHistory:
        """How the layers of an image came to be.

        :raises ImageNotFoundError: the node has no such image.
        """
        history: ImageHistory = await self._channel.call("image.history", ImageNameRequest(ref), repeatable=True)
        return history

    async def publish_image(self, ref: str, *, progress: Progress | None = None) -> ImagePublished:
        """Put an image into the node's shared store, under the same name. What the store has is not sent again.

        :raises ImageNotFoundError: the node has no such image.
        :raises AlreadyExistsError: the store has another image of that name.
        :raises UnsupportedOperationError: the node has no shared store, or can only read it.
        """
        published: ImagePublished = await self._with_progress("image.publish", ImagePublishRequest(ref), progress)
        return published

    async def fetch_image(self, ref: str, *, progress: Progress | None = None) -> ImageInfo:
        """Have all data of an image on the node, of which sandboxes otherwise fetch what they read.

        :raises ImageNotFoundError: neither the node nor its shared store has such an image.
        :raises UnavailableError: the shared store cannot be reached.
        """
        info: ImageInfo = await self._with_progress("image.fetch", ImageFetchRequest(ref), progress)
        return info

    async def image_stats(self, ref: str = "") -> ImageStatsAnswer:
        """How much of an image's layers is on the node, and what reading them cost; without a name of all.

        :raises ImageNotFoundError: the node has no such image.
        """
        request = ImageStatsRequest(ref)
        layers: list[ImageStats] = []
        while True:
            page: ImageStatsAnswer = await self._channel.call("image.stats", request, repeatable=True)
            layers += page.layers
            if page.next is None:
                return ImageStatsAnswer(tuple(layers), page.cache_bytes, page.cache_limit)
            request = ImageStatsRequest(ref, page.next)

    async def pin_image(self, ref: str, *, pinned: bool = True) -> ImageInfo:
        """Keep an image on the node whatever is collected there, or no longer. One that only the shared store has
        comes here for it.

        :raises ImageNotFoundError: there is no such image.
        """
        info: ImageInfo = await self._channel.call("image.pin", ImagePinRequest(ref, pinned), repeatable=True)
        return info

    async def collect_images(self, *, keep_bytes: int = 0, dry_run: bool = False) -> ImageGcAnswer:
        """Let the node forget images that it can have again from the shared store, the longest unused first, until its
        layers have `keep_bytes` at most. None that a sandbox uses or that is pinned goes."""
        answer: ImageGcAnswer = await self._channel.call(
            "image.gc", ImageGcRequest(keep_bytes, dry_run), timeout=_GC_S, repeatable=True
        )
        return answer

    async def _with_progress(self, method: str, request: msgspec.Struct, progress: Progress | None) -> Any:
        """A call that may take long, as long as it tells of progress."""

        answer = await self._channel.collect(
            method, request, timeout=SILENCE_S, extend=True, on_event=telling(progress)
        )
        return answer.value


def telling(progress: Progress | None) -> Callable[[bytes], None]:
    """What hands the events of a call to `progress`."""

    def tell(payload: bytes) -> None:
        if progress is not None:
            progress(_decode_progress(payload))

    return tell
