"""The client: one connection to a server, and the sandboxes, rollouts, jobs and images behind it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from ._creating import create_alone
from ._steps.track import Scope
from ._transport.channel import RECONNECT_TIMEOUT_S, Channel
from ._transport.endpoint import Endpoint, UnixEndpoint, run_directory, socket_path
from ._transport.local_server import LocalEndpoint
from .args import DSecContainerRunArgs
from .images import ImageCalls
from .protocol.calls import DrainRequest, Empty, SandboxList, SandboxListRequest, ServerInfo
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
from .protocol.jobs import (
    JobAnswer,
    JobInfo,
    JobList,
    JobListRequest,
    JobProgress,
    JobRequest,
    LeaseInfo,
    LeaseRequest,
    RolloutList,
    RolloutListRequest,
)
from .protocol.nodes import DoctorReport
from .protocol.spec import SandboxInfo
from .protocol.steps import OTHER, check_scope_name
from .rollout import JobLease, Rollout, attach, checked_lease
from .sandbox import NO_ENV, Sandbox

_BUILD_SILENCE_S = 900.0
_VERIFY_S = 3600.0

_JOB_SILENCE_S = 300.0
_DRAIN_GRACE_S = 30.0

_decode_job_progress = msgspec.msgpack.Decoder(JobProgress).decode
_decode_progress = msgspec.msgpack.Decoder(BuildProgress).decode


class DSecClient(ImageCalls):
    """Speaks with the server at `url`, else at `DSEC_URL`, else with the local node, which it starts when none runs.

    Used by `async with`, or by `open` and `close`. All calls may be made at once from many tasks of one event loop.

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
        self._channel = Channel(endpoint or _endpoint(url), connect_timeout, reconnect_timeout)
        self._numbers = track is None
        self._others = Scope(self._channel, None).track(track or OTHER)
        """Where the calls of handles go that were made from an id alone."""

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

    async def run_container(
        self, args: DSecContainerRunArgs, *, timeout: float = 60.0, key: str | None = None
    ) -> Sandbox:
        """A new container sandbox, running.

        A lost connection is survived: the create is asked for again under the same key and makes no second sandbox.
        With a `key` of the caller's own that holds for whoever asks again, also after the caller's end; the calls of
        the handle begin at the first step then, and return what was recorded there.
        :raises ImageNotFoundError: no such image; build it first.
        :raises InvalidArgumentError, UnsupportedOperationError: an option that cannot be honoured.
        :raises CapacityError: no room.
        :raises DeadlineExceededError: it did not run within `timeout` seconds, and was given up.
        """
        if not isinstance(args, DSecContainerRunArgs):
            raise InvalidArgumentError(f"cannot run {args!r}: run_container takes DSecContainerRunArgs", field="args")
        return await create_alone(self._others, args.to_spec(), timeout, key, unnumbered=not self._numbers)

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """The handle of an id, without asking whether there is such a sandbox. `attach` gives one that replays."""
        return Sandbox(self._others, sandbox_id)

    async def get(self, sandbox_id: str) -> Sandbox:
        """The sandbox of an id.

        :raises SandboxNotFoundError: there is none.
        """
        sandbox = Sandbox(self._others, sandbox_id)
        await sandbox.info()
        return sandbox

    async def list(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        job: str | None = None,
        rollout: str | None = None,
        include_final: bool = False,
    ) -> tuple[SandboxInfo, ...]:
        """Sandboxes that carry all of `labels`, of a job, of a rollout; with `include_final` also those that have
        ended and are remembered."""
        pages: Sequence[SandboxList] = await self._pages(
            "sandbox.list", SandboxListRequest(dict(labels or {}), job, rollout, include_final)
        )
        return tuple(found for page in pages for found in page.sandboxes)

    async def stop(self, sandbox_id: str) -> SandboxInfo:
        """Stop a sandbox by its id."""
        return await self.sandbox(sandbox_id).stop()

    async def attach(
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
        return await attach(
            self._channel,
            name,
            job=job,
            labels=labels,
            lease=lease,
            pause_after=pause_after,
            stop_after=stop_after,
            on_unknown=on_unknown,
        )

    async def rollouts(self, job: str | None = None) -> tuple[LeaseInfo, ...]:
        """Every rollout, or those of a job."""
        pages: Sequence[RolloutList] = await self._pages("rollout.list", RolloutListRequest(job))
        return tuple(found for page in pages for found in page.rollouts)

    async def jobs(self) -> tuple[JobInfo, ...]:
        """Every job."""
        pages: Sequence[JobList] = await self._pages("job.list", JobListRequest())
        return tuple(found for page in pages for found in page.jobs)

    async def job(self, job: str) -> JobInfo:
        """A job, its sandboxes counted by their states.

        :raises NotFoundError: nothing belongs to it.
        """
        info: JobInfo = await self._channel.call("job.inspect", JobRequest(job), repeatable=True)
        return info

    async def pause_job(self, job: str, progress: Callable[[JobProgress], None] | None = None) -> JobAnswer:
        """Pause all sandboxes of a job. One that cannot be paused keeps no other from it; the answer names it."""
        return await self._job("job.pause", job, progress)

    async def resume_job(self, job: str, progress: Callable[[JobProgress], None] | None = None) -> JobAnswer:
        """Let all sandboxes of a job go on after a pause."""
        return await self._job("job.resume", job, progress)

    async def stop_job(self, job: str, progress: Callable[[JobProgress], None] | None = None) -> JobAnswer:
        """Stop all sandboxes of a job for good."""
        return await self._job("job.stop", job, progress)

    def hold_job(
        self, job: str, *, lease: float = 60.0, pause_after: float | None = None, stop_after: float | None = None
    ) -> JobLease:
        """Hold a job until its `async with` is left: `lease` seconds after this program has died what is left of the
        job is orphaned, paused `pause_after` and stopped `stop_after` seconds later."""
        request = LeaseRequest(
            "job",
            check_scope_name(job, "job"),
            lease_s=checked_lease(lease),
            pause_after_s=pause_after,
            stop_after_s=stop_after,
        )
        return JobLease(self._channel, request)

    async def images(self, *, store: bool = False) -> tuple[ImageInfo, ...]:
        """Every image of the node, or with `store` every one of its shared store."""
        pages: Sequence[ImageList] = await self._pages("image.list", ImageListRequest(store=store))
        return tuple(found for page in pages for found in page.images)

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
        answer = await self._channel.collect(
            "image.build",
            request,
            timeout=_BUILD_SILENCE_S,
            extend=True,
            on_event=_telling(progress, _decode_progress),
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

    async def drain_server(self, timeout: float = 30.0) -> None:
        """End the server for another one: it takes nothing new and waits `timeout` seconds for what runs. Sandboxes
        go on meanwhile, and the next server adopts them."""
        await self._channel.call("server.drain", DrainRequest(timeout), timeout=timeout + _DRAIN_GRACE_S)

    async def _pages(self, method: str, request: msgspec.Struct) -> Sequence[Any]:
        """A list, which comes in pages.

        :raises WireError: a page does not begin behind the one before.
        """
        pages: list[Any] = []
        after: str | None = None
        while True:
            pages.append(await self._channel.call(method, request, repeatable=True))
            following: str | None = pages[-1].next
            if following is None:
                return pages
            if after is not None and following <= after:
                raise WireError(f"cannot list: the page after {after!r} is the same again")
            after = following
            request = msgspec.structs.replace(request, after=after)

    async def _job(self, method: str, job: str, progress: Callable[[JobProgress], None] | None) -> JobAnswer:
        answer = await self._channel.collect(
            method,
            JobRequest(job),
            timeout=_JOB_SILENCE_S,
            extend=True,
            repeatable=True,
            on_event=_telling(progress, _decode_job_progress),
        )
        done: JobAnswer = answer.value
        return done


def _endpoint(url: str | None) -> Endpoint:
    url = url or os.environ.get("DSEC_URL")
    return UnixEndpoint(socket_path(url)) if url else LocalEndpoint(run_directory())


def _telling(progress: Callable[[Any], None] | None, decode: Callable[[bytes], Any]) -> Callable[[bytes], None] | None:
    """What hands the events of a call to `progress`."""
    return None if progress is None else lambda payload: progress(decode(payload))
