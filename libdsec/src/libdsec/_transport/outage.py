"""How long a call goes on trying while there is no server, and how often."""

from __future__ import annotations

import random

from ..protocol.errors import DSecError, OutcomeUnknownError
from .clock import Clock

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0

STABLE_S = 10.0
"""A connection that lasted so long ends an outage: the next loss is another one, with time of its own."""


class Outage:
    """What one call has seen of a server that is away: since when, and whether the call may have run."""

    def __init__(self, clock: Clock, patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._tries = 0
        self._ends = clock.time() + patience
        self.unknown: OutcomeUnknownError | None = None
        """Of an earlier try that was sent and not answered: whatever comes later, the call may have run."""

    @property
    def left(self) -> float:
        """Seconds that the call goes on trying."""
        return max(0.0, self._ends - self._clock.time())

    @property
    def over(self) -> bool:
        """Whether it is not worth another try."""
        return self._clock.time() + _LONGEST_PAUSE_S > self._ends

    async def pause(self, error: DSecError) -> None:
        """Wait before the next try, longer each time, and never as long as others that wait.

        :raises DSecError: the time is over; what the call has to be told then.
        """
        pause = min(_FIRST_PAUSE_S * 2**self._tries, _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
        if self._clock.time() + pause > self._ends:
            raise self.verdict(error) from None
        self._tries += 1
        await self._clock.sleep(pause)

    def restart(self) -> None:
        """The server was there in between."""
        self._tries, self._ends = 0, self._clock.time() + self._patience

    def verdict(self, error: DSecError) -> DSecError:
        """How the call ends with `error`: one that was sent before is not said to surely not have run."""
        if self.unknown is not None and not isinstance(error, OutcomeUnknownError):
            return self.unknown
        return error
