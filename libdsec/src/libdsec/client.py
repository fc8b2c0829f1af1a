"""The client: one connection to a server, and the sandboxes and images behind it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from ._timeouts import checked_timeout
from ._transport.channel import Channel
from ._transport.endpoint import Endpoint, UnixEndpoint, run_directory, socket_path
from ._transport.local_server import LocalEndpoint
from .args import DSecContainerRunArgs
from .protocol.calls import CreateRequest, Empty, SandboxList, SandboxListRequest, SandboxRequest, ServerInfo
from .protocol.environment import (
    BuildProgress,
    ImageBuildRequest,
    ImageConfig,
    ImageInfo,
    ImageList,
    ImageListRequest,
    ImageNameRequest,
    LayerKind,
)
from .protocol.errors import InvalidArgumentError, WireError
from .protocol.ids import new_token
from .protocol.nodes import DoctorReport
from .protocol.spec import SandboxInfo, SandboxSpec
from .sandbox import Sandbox

_CREATE_GRACE_S = 15.0
"""Beyond the creator's own time: the node answers when nothing is left of the sandbox, and may first have to find out,
within its DSEC_FORK_SERVER_TIMEOUT_S, that its fork server hangs."""

_BUILD_SILENCE_S = 900.0
_VERIFY_S = 3600.0

_decode_progress = msgspec.msgpack.Decoder(BuildProgress).decode


class DSecClient:
    """Speaks with the server at `url`, else at `DSEC_URL`, else with the local node, which it starts when none runs.

    Used by `async with`, or by `open` and `close`. A lost connection is made again by the next call. All calls may be
    made at once from many tasks of one event loop.
    """

    def __init__(
        self, url: str | None = None, *, endpoint: Endpoint | None = None, connect_timeout: float = 60.0
    ) -> None:
        self._channel = Channel(endpoint or _endpoint(url), connect_timeout)

    async def open(self) -> Self:
        """Connect. Again is fine.

        :raises UnavailableError: no server there, or a local one that did not come up (with the end of its log).
        :raises PermissionDeniedError: no local server runs, and starting one needs root.
        """
        await self._channel.open()
        return self

    async def close(self) -> None:
        """Disconnect; sandboxes live on. Again is fine."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run_container(self, args: DSecContainerRunArgs, *, timeout: float = 60.0) -> Sandbox:
        """A new container sandbox, running.

        A lost connection is survived: the create is asked for again under the same key and makes no second sandbox.
        :raises ImageNotFoundError: no such image; build it first.
        :raises InvalidArgumentError, UnsupportedOperationError: an option that cannot be honoured.
        :raises CapacityError: no room.
        :raises DeadlineExceededError: it did not run within `timeout` seconds, and was given up.
        """
        if not isinstance(args, DSecContainerRunArgs):
            raise InvalidArgumentError(f"cannot run {args!r}: run_container takes DSecContainerRunArgs", field="args")
        return await self._create(args.to_spec(), timeout)

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """The handle of an id, without asking whether there is such a sandbox."""
        return Sandbox(self._channel, sandbox_id)

    async def get(self, sandbox_id: str) -> Sandbox:
        """The sandbox of an id.

        :raises SandboxNotFoundError: there is none.
        """
        sandbox = Sandbox(self._channel, sandbox_id)
        await sandbox.info()
        return sandbox

    async def list(
        self, *, labels: Mapping[str, str] | None = None, include_final: bool = False
    ) -> tuple[SandboxInfo, ...]:
        """Sandboxes that carry all of `labels`; with `include_final` also those that have ended and are remembered."""
        found: list[SandboxInfo] = []
        request = SandboxListRequest(dict(labels or {}), include_final=include_final)
        while True:
            page: SandboxList = await self._channel.call("sandbox.list", request, repeatable=True)
            found += page.sandboxes
            if page.next is None:
                return tuple(found)
            request = msgspec.structs.replace(request, after=_following(page.next, request.after))

    async def stop(self, sandbox_id: str) -> SandboxInfo:
        """Stop a sandbox by its id."""
        info: SandboxInfo = await self._channel.call("sandbox.stop", SandboxRequest(sandbox_id), repeatable=True)
        return info

    async def images(self) -> tuple[ImageInfo, ...]:
        """Every published image."""
        found: list[ImageInfo] = []
        request = ImageListRequest()
        while True:
            page: ImageList = await self._channel.call("image.list", request, repeatable=True)
            found += page.images
            if page.next is None:
                return tuple(found)
            request = ImageListRequest(_following(page.next, request.after))

    async def image(self, ref: str) -> ImageInfo:
        """The image `name:tag`.

        :raises ImageNotFoundError: there is none.
        """
        info: ImageInfo = await self._channel.call("image.inspect", ImageNameRequest(ref), repeatable=True)
        return info

    async def build_image(
        self,
        ref: str,
        source: str,
        *,
        kind: LayerKind = "base",
        packages: Sequence[str] = (),
        mirror: str | None = None,
        config: ImageConfig | None = None,
        progress: Callable[[BuildProgress], None] | None = None,
    ) -> ImageInfo:
        """Build and publish `ref` from `release:NAME`, `dir:/path` or `tar:/path`; paths are the node's.

        :raises AlreadyExistsError: the name is taken; published images never change.
        """
        request = ImageBuildRequest(ref, source, kind, tuple(packages), mirror, config or ImageConfig())

        def tell(payload: bytes) -> None:
            if progress is not None:
                progress(_decode_progress(payload))

        answer = await self._channel.collect(
            "image.build", request, timeout=_BUILD_SILENCE_S, extend=True, on_event=tell
        )
        info: ImageInfo = answer.value
        return info

    async def remove_image(self, ref: str) -> None:
        """Remove an image.

        :raises ConflictError: a sandbox uses it.
        """
        await self._channel.call("image.remove", ImageNameRequest(ref))

    async def verify_image(self, ref: str) -> ImageInfo:
        """Read every byte of an image's layers and hold it against the layers' digests.

        :raises IntegrityError: says which layer, and which part of it.
        """
        answer: ImageInfo = await self._channel.call(
            "image.verify", ImageNameRequest(ref), timeout=_VERIFY_S, repeatable=True
        )
        return answer

    async def server_info(self) -> ServerInfo:
        """The server and its node."""
        info: ServerInfo = await self._channel.call("server.info", Empty(), repeatable=True)
        return info

    async def doctor(self) -> DoctorReport:
        """What the node can and cannot do, each tried there now."""
        report: DoctorReport = await self._channel.call("node.doctor", Empty(), repeatable=True)
        return report

    async def shutdown_server(self) -> None:
        """End the server, and with it all its sandboxes."""
        await self._channel.call("server.shutdown", Empty())

    async def _create(self, spec: SandboxSpec, timeout: float) -> Sandbox:
        checked_timeout(timeout)
        request = CreateRequest(spec, new_token(), timeout)
        info: SandboxInfo = await self._channel.call(
            "sandbox.create", request, timeout=timeout + _CREATE_GRACE_S, repeatable=True
        )
        return Sandbox(self._channel, info.id)


def _endpoint(url: str | None) -> Endpoint:
    url = url or os.environ.get("DSEC_URL")
    return UnixEndpoint(socket_path(url)) if url else LocalEndpoint(run_directory())


def _following(page: str, earlier: str | None) -> str:
    """Where the next page of a list begins.

    :raises WireError: not behind the one before.
    """
    if earlier is not None and page <= earlier:
        raise WireError(f"cannot list: the page after {earlier!r} is the same again")
    return page
