"""A rollout that a program holds, blocking."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from .. import rollout as aio
from ..args import DSecContainerRunArgs
from .logged import Logged
from .portal import Portal, Twin, blocking, inside
from .sandbox import Sandbox


class Rollout(Logged):
    __doc__ = aio.Rollout.__doc__

    def __init__(self, portal: Portal, twin: aio.Rollout) -> None:
        super().__init__(portal, twin)
        self.id = twin.id
        self.epoch = twin.epoch
        self.job = twin.job
        self.recorded = twin.recorded

    release = blocking(aio.Rollout.release)
    close = blocking(aio.Rollout.close)

    @property
    def replayed(self) -> int:
        """How many calls were answered from the log so far."""
        replayed: int = self._twin.replayed
        return replayed

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, of one that was attached by its id.

        :raises UnsupportedOperationError: it is a rollout: its sandboxes come of `run_container`.
        """
        return Sandbox(self._portal, self._twin.sandbox)

    def track(self, name: str) -> Rollout:
        """The same rollout on a track of its own, for what a program does at the same time as other calls.

        :raises InvalidArgumentError: not a name of a track.
        """
        return Rollout(self._portal, self._portal.run(lambda: self._twin.track(name)))

    def run_container(self, args: DSecContainerRunArgs, *, timeout: float = 60.0, key: str | None = None) -> Sandbox:
        """A container sandbox of this rollout: the recorded one, or a new one. As `DSecClient.run_container`.

        :raises ReplayDivergedError: the log has something else here.
        """
        return Sandbox(self._portal, self._portal.call(self._twin.run_container(args, timeout=timeout, key=key)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._twin.__aexit__(kind, error, trace))


class JobLease(Twin):
    __doc__ = aio.JobLease.__doc__

    def __init__(self, portal: Portal, twin: aio.JobLease) -> None:
        super().__init__(portal, twin)
        self.job = twin.job

    check = inside(aio.JobLease.check)

    def __enter__(self) -> Self:
        self._portal.call(self._twin.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._twin.__aexit__(kind, error, trace))
