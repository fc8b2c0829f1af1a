"""The client, blocking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Literal, Self

from .. import client as aio
from .._transport.channel import RECONNECT_TIMEOUT_S
from .._transport.endpoint import Endpoint
from ..args import DSecContainerRunArgs
from ..protocol.errors import ClientClosedError
from ..protocol.images import Change
from ..sandbox import NO_ENV
from .portal import Portal, Twin, blocking, iterated
from .rollout import JobLease, Rollout
from .sandbox import Sandbox


class DSecClient(Twin):
    """Speaks with the server at `url`, else at `DSEC_URL`, else with the local node, which it starts when none runs.

    Used by `with`, or by `open` and `close`. All calls may be made at once from many threads.

    A lost connection is made again by the calls themselves: for `reconnect_timeout` seconds each waits for a server,
    and says itself again where that runs nothing twice. The steps of handles made here are so, and reading is; what is
    not, ends as `OutcomeUnknownError`. With `track` the node numbers all steps, on that track; nothing replays them.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        endpoint: Endpoint | None = None,
        connect_timeout: float = 60.0,
        reconnect_timeout: float = RECONNECT_TIMEOUT_S,
        track: Literal["cli", "other"] | None = None,
    ) -> None:
        twin = aio.DSecClient(
            url,
            endpoint=endpoint,
            connect_timeout=connect_timeout,
            reconnect_timeout=reconnect_timeout,
            track=track,
        )
        super().__init__(Portal(), twin)

    list = blocking(aio.DSecClient.list)
    stop = blocking(aio.DSecClient.stop)
    images = blocking(aio.DSecClient.images)
    image = blocking(aio.DSecClient.image)
    build_image = blocking(aio.DSecClient.build_image)
    remove_image = blocking(aio.DSecClient.remove_image)
    verify_image = blocking(aio.DSecClient.verify_image)
    pull_image = blocking(aio.DSecClient.pull_image)
    push_image = blocking(aio.DSecClient.push_image)
    export_image = blocking(aio.DSecClient.export_image)
    image_history = blocking(aio.DSecClient.image_history)
    publish_image = blocking(aio.DSecClient.publish_image)
    fetch_image = blocking(aio.DSecClient.fetch_image)
    image_stats = blocking(aio.DSecClient.image_stats)
    pin_image = blocking(aio.DSecClient.pin_image)
    collect_images = blocking(aio.DSecClient.collect_images)
    server_info = blocking(aio.DSecClient.server_info)
    doctor = blocking(aio.DSecClient.doctor)
    rollouts = blocking(aio.DSecClient.rollouts)
    jobs = blocking(aio.DSecClient.jobs)
    job = blocking(aio.DSecClient.job)
    pause_job = blocking(aio.DSecClient.pause_job)
    resume_job = blocking(aio.DSecClient.resume_job)
    stop_job = blocking(aio.DSecClient.stop_job)
    drain_server = blocking(aio.DSecClient.drain_server)
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

    def run_container(self, args: DSecContainerRunArgs, *, timeout: float = 60.0, key: str | None = None) -> Sandbox:
        """A new container sandbox, running.

        A lost connection is survived: the create is asked for again under the same key and makes no second sandbox.
        With a `key` of the caller's own that holds for whoever asks again, also after the caller's end; the calls of
        the handle begin at the first step then, and return what was recorded there.
        :raises ImageNotFoundError: no such image; build it first.
        :raises InvalidArgumentError, UnsupportedOperationError: an option that cannot be honoured.
        :raises CapacityError: no room.
        :raises DeadlineExceededError: it did not run within `timeout` seconds, and was given up.
        """
        return Sandbox(self._portal, self._portal.call(self._twin.run_container(args, timeout=timeout, key=key)))

    def attach(
        self,
        name: str,
        *,
        job: str | None = None,
        labels: Mapping[str, str] = NO_ENV,
        lease: float = 60.0,
        pause_after: float | None = None,
        stop_after: float | None = None,
        on_unknown: Literal["raise", "again"] = "raise",
    ) -> Rollout:
        """Hold the rollout `name`, a new one or one that was begun, or by its id a sandbox with a log of its own.

        Whoever held it before cannot go on. The same program then runs again from the top: calls that are recorded
        return at once what they returned, the first new one runs. The lease is renewed as long as this program lives;
        `lease` seconds after its end what is left is orphaned, paused `pause_after` and stopped `stop_after` later.
        A recorded step that nobody knows the outcome of raises `OutcomeUnknownError`, or with "again" runs again.
        :raises SandboxNotFoundError: there is no such sandbox.
        :raises ConflictError: the rollout belongs to another job.
        """
        attaching = self._twin.attach(
            name,
            job=job,
            labels=labels,
            lease=lease,
            pause_after=pause_after,
            stop_after=stop_after,
            on_unknown=on_unknown,
        )
        return Rollout(self._portal, self._portal.call(attaching))

    def hold_job(
        self, job: str, *, lease: float = 60.0, pause_after: float | None = None, stop_after: float | None = None
    ) -> JobLease:
        """Hold a job until its `with` is left: `lease` seconds after this program has died what is left of the
        job is orphaned, paused `pause_after` and stopped `stop_after` seconds later."""
        holding = self._twin.hold_job(job, lease=lease, pause_after=pause_after, stop_after=stop_after)
        return JobLease(self._portal, holding)

    def diff_images(self, a: str, b: str) -> Iterator[Change]:
        """What turns the image `a` into `b`, in the order of paths: a directory before what is in it. A time alone is
        no change; of a directory that is gone only itself is told. Data that only the node's shared store has
        is fetched where it has to be compared.

        :raises ImageNotFoundError: neither the node nor its shared store has one of them.
        """
        return iterated(self._portal, self._twin.diff_images(a, b))

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """The handle of an id, without asking whether there is such a sandbox. `attach` gives one that replays."""
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
