"""A rollout that a program holds: its sandboxes, and the command log that the program is fast-forwarded through."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import msgspec

from ._creating import create_step
from ._logged import Logged
from ._steps.lease import Lease
from ._steps.recording import OnUnknown, Recording
from ._steps.track import Scope, Track, checked_name
from ._transport.channel import Channel
from .args import DSecContainerRunArgs
from .protocol.errors import InvalidArgumentError, UnsupportedOperationError
from .protocol.ids import is_sandbox_id
from .protocol.jobs import LeaseRequest
from .protocol.steps import MAIN, check_scope_name
from .sandbox import Sandbox


class Rollout(Logged):
    """Made by `DSecClient.attach`. One program at a time: whoever attaches later ends this one.

    Leaving its `async with` gives the lease back. An exception leaves it held until it expires, so that the program can
    be started again, and orphans what nobody takes up.
    """

    def __init__(self, scope: Scope, track: Track, lease: Lease, recording: Recording) -> None:
        super().__init__(track)
        self._scope = scope
        self._lease = lease
        self._recording = recording
        self.id = lease.info.name
        self.epoch = lease.epoch
        """Of the lease."""
        self.job = lease.info.job
        self.recorded = recording.steps
        """How many steps were there to be replayed when it was attached."""

    def __repr__(self) -> str:
        return f"Rollout({self.id!r})"

    @property
    def replayed(self) -> int:
        """How many calls were answered from the log so far."""
        return self._recording.replayed

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, of one that was attached by its id.

        :raises UnsupportedOperationError: it is a rollout: its sandboxes come of `run_container`.
        """
        if not is_sandbox_id(self.id):
            raise UnsupportedOperationError(
                f"cannot use rollout {self.id} as a sandbox: its sandboxes come of run_container, from the log where "
                "they were made before"
            )
        return Sandbox(self._track, self.id)

    def track(self, name: str) -> Rollout:
        """The same rollout on a track of its own, for what a program does at the same time as other calls.

        :raises InvalidArgumentError: not a name of a track.
        """
        checked_name(name)
        track = self._scope.track(name) if self._track.name == MAIN else self._track.named(name)
        return Rollout(self._scope, track, self._lease, self._recording)

    async def run_container(
        self, args: DSecContainerRunArgs, *, timeout: float = 60.0, key: str | None = None
    ) -> Sandbox:
        """A container sandbox of this rollout: the recorded one, or a new one. As `DSecClient.run_container`.

        :raises ReplayDivergedError: the log has something else here.
        """
        if is_sandbox_id(self.id):
            raise UnsupportedOperationError(
                f"cannot create a sandbox in the log of sandbox {self.id}: attach a rollout by a name of your own"
            )
        if not isinstance(args, DSecContainerRunArgs):
            raise InvalidArgumentError(f"cannot run {args!r}: run_container takes DSecContainerRunArgs", field="args")
        spec = msgspec.structs.replace(args.to_spec(), rollout=self.id)
        return await create_step(self._track, spec, timeout, key)

    async def _steps_of(self) -> tuple[str, str | None]:
        return self.id, None

    async def release(self) -> None:
        """The program is done: give the lease back, nothing is orphaned. Again is fine."""
        await self._lease.release()

    async def close(self) -> None:
        """Renew the lease no more, and leave what there is to whoever attaches next. Again is fine."""
        await self._lease.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.release()
        else:
            await self.close()


class JobLease:
    """Made by `DSecClient.hold_job`: while it is held the job is not orphaned. Used as `async with`.

    Leaving it gives the lease back; an exception leaves it held until it expires.
    """

    def __init__(self, channel: Channel, request: LeaseRequest) -> None:
        self._channel = channel
        self._request = request
        self._lease: Lease | None = None
        self.job = request.name

    def __repr__(self) -> str:
        return f"JobLease({self.job!r})"

    def check(self) -> None:
        """Nothing while the lease is held.

        :raises LeaseLostError: it is not: somebody else holds the job now, or it could not be renewed in time.
        """
        if self._lease is not None:
            self._lease.check()

    async def __aenter__(self) -> Self:
        self._lease = await Lease.take(self._channel, self._request)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is None:
            return
        if kind is None:
            await self._lease.release()
        else:
            await self._lease.leave()


async def attach(
    channel: Channel,
    name: str,
    *,
    job: str | None,
    labels: Mapping[str, str],
    lease: float,
    pause_after: float | None,
    stop_after: float | None,
    on_unknown: OnUnknown,
) -> Rollout:
    """Take the lease, read the log. What was taken is left to expire when the log cannot be read."""
    if on_unknown not in ("raise", "again"):
        raise InvalidArgumentError(
            f"cannot use on_unknown={on_unknown!r}: it must be 'raise' or 'again'", field="on_unknown"
        )
    one = is_sandbox_id(name)
    if one and (job is not None or labels):
        raise InvalidArgumentError(
            f"cannot give sandbox {name} a job or labels when it is attached: they are given at its create", field="job"
        )
    if not one:
        check_scope_name(name, "rollout")
    request = LeaseRequest(
        "sandbox" if one else "rollout",
        name,
        job if job is None else check_scope_name(job, "job"),
        checked_lease(lease),
        pause_after,
        stop_after,
        dict(labels),
    )
    held = await Lease.take(channel, request)
    try:
        recording = Recording(channel, name, on_unknown)
        await recording.load()
    except BaseException:
        await held.leave()
        raise
    scope = Scope(channel, name, lease=held, recording=recording)
    return Rollout(scope, scope.track(MAIN), held, recording)


def checked_lease(lease: float) -> float:
    """:raises InvalidArgumentError: not a number of seconds above 0."""
    if not lease > 0:
        raise InvalidArgumentError(f"cannot use lease={lease!r}: it must be above 0", field="lease")
    return lease
