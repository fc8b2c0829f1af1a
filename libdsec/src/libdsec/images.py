"""The client's calls about images that come from elsewhere or go there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ._transport.channel import Channel
from .protocol.environment import BuildProgress, ImageInfo, LayerKind
from .protocol.images import (
    MERGE_BYTES,
    ImageGcAnswer,
    ImageGcRequest,
    ImagePinRequest,
    ImagePublished,
    ImagePublishRequest,
    ImagePullRequest,
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

    async def publish_image(self, ref: str, *, progress: Progress | None = None) -> ImagePublished:
        """Put an image into the node's shared store, under the same name. What the store has is not sent again.

        :raises ImageNotFoundError: the node has no such image.
        :raises AlreadyExistsError: the store has another image of that name.
        :raises UnsupportedOperationError: the node has no shared store, or can only read it.
        """
        published: ImagePublished = await self._with_progress("image.publish", ImagePublishRequest(ref), progress)
        return published

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

        def tell(payload: bytes) -> None:
            if progress is not None:
                progress(_decode_progress(payload))

        answer = await self._channel.collect(method, request, timeout=SILENCE_S, extend=True, on_event=tell)
        return answer.value
