"""The client, blocking."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from .. import client as aio
from .._transport.endpoint import Endpoint
from ..args import DSecContainerRunArgs
from ..protocol.errors import ClientClosedError
from .portal import Portal, Twin, blocking
from .sandbox import Sandbox


class DSecClient(Twin):
    """Speaks with the server at `url`, else at `DSEC_URL`, else with the local node, which it starts when none runs.

    Used by `with`, or by `open` and `close`. A lost connection is made again by the next call. All calls may be made
    at once from many threads.
    """

    def __init__(
        self, url: str | None = None, *, endpoint: Endpoint | None = None, connect_timeout: float = 60.0
    ) -> None:
        super().__init__(Portal(), aio.DSecClient(url, endpoint=endpoint, connect_timeout=connect_timeout))

    list = blocking(aio.DSecClient.list)
    stop = blocking(aio.DSecClient.stop)
    images = blocking(aio.DSecClient.images)
    image = blocking(aio.DSecClient.image)
    build_image = blocking(aio.DSecClient.build_image)
    remove_image = blocking(aio.DSecClient.remove_image)
    verify_image = blocking(aio.DSecClient.verify_image)
    server_info = blocking(aio.DSecClient.server_info)
    doctor = blocking(aio.DSecClient.doctor)
    shutdown_server = blocking(aio.DSecClient.shutdown_server)

    def open(self) -> Self:
        """Connect. Again is fine.

        :raises UnavailableError: no server there, or a local one that did not come up (with the end of its log).
        :raises PermissionDeniedError: no local server runs, and starting one needs root.
        """
        self._portal.start()
        try:
            self._portal.call(self._twin.open())
        except BaseException:
            self._portal.stop()
            raise
        return self

    def close(self) -> None:
        """Disconnect; sandboxes live on. Again is fine."""
        try:
            self._portal.call(self._twin.close())
        except ClientClosedError:
            return
        self._portal.stop()

    def run_container(self, args: DSecContainerRunArgs, *, timeout: float = 60.0) -> Sandbox:
        """A new container sandbox, running.

        A lost connection is survived: the create is asked for again under the same key and makes no second sandbox.
        :raises ImageNotFoundError: no such image; build it first.
        :raises InvalidArgumentError, UnsupportedOperationError: an option that cannot be honoured.
        :raises CapacityError: no room.
        :raises DeadlineExceededError: it did not run within `timeout` seconds, and was given up.
        """
        return Sandbox(self._portal, self._portal.call(self._twin.run_container(args, timeout=timeout)))

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """The handle of an id, without asking whether there is such a sandbox."""
        return Sandbox(self._portal, self._twin.sandbox(sandbox_id))

    def get(self, sandbox_id: str) -> Sandbox:
        """The sandbox of an id.

        :raises SandboxNotFoundError: there is none.
        """
        return Sandbox(self._portal, self._portal.call(self._twin.get(sandbox_id)))

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
