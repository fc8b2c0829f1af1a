"""What handles of sandboxes and of rollouts tell of their command log, blocking."""

from __future__ import annotations

from collections.abc import Iterator

from .. import _logged as aio
from ..protocol.steps import Step
from .portal import Twin, blocking, iterated


class Logged(Twin):
    __doc__ = aio.Logged.__doc__

    steps = blocking(aio.Logged.steps)

    def follow_steps(self, *, after: int = 0, track: str | None = None, requests: bool = True) -> Iterator[Step]:
        """Its steps whose `seq` is above `after`, those there are and then each as it ends; one that ran at first
        comes again when it has ended.

        :raises OutcomeUnknownError: the connection was lost.
        """
        return iterated(self._portal, self._twin.follow_steps(after=after, track=track, requests=requests))
