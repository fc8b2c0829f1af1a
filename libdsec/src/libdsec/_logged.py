"""What handles of sandboxes and of rollouts tell of their command log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import aclosing

from ._steps.reading import follow, read_steps
from ._steps.track import Track
from .protocol.steps import LogReadRequest, Step


class Logged(ABC):
    """A handle whose calls are steps of a log."""

    def __init__(self, track: Track) -> None:
        self._track = track

    @abstractmethod
    async def _steps_of(self) -> tuple[str, str | None]:
        """Which log, and of which sandbox the steps are; None is all of it."""

    async def steps(
        self,
        *,
        limit: int = 0,
        last: bool = False,
        track: str | None = None,
        requests: bool = True,
        outputs: bool = False,
    ) -> tuple[Step, ...]:
        """Its steps in its command log, in their order: all, or the first `limit`, or with `last` the last ones. Those
        of a rollout are the steps of all its sandboxes.

        A step has its output in it where that is small; with `outputs` all have. `requests` adds the arguments.
        """
        scope, sandbox = await self._steps_of()
        request = LogReadRequest(scope, 0, track, sandbox, limit, last, requests)
        return await read_steps(self._track.channel, request, outputs)

    async def follow_steps(
        self, *, after: int = 0, track: str | None = None, requests: bool = True
    ) -> AsyncIterator[Step]:
        """Its steps whose `seq` is above `after`, those there are and then each as it ends; one that ran at first
        comes again when it has ended.

        :raises OutcomeUnknownError: the connection was lost.
        """
        scope, sandbox = await self._steps_of()
        request = LogReadRequest(scope, after, track, sandbox, requests=requests)
        async with aclosing(follow(self._track.channel, request)) as following:
            async for step in following:
                yield step
