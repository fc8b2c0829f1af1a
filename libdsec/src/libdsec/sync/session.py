"""A persistent shell in a sandbox, blocking."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from .. import session as aio
from .portal import Twin, blocking


class Session(Twin):
    __doc__ = aio.Session.__doc__

    run = blocking(aio.Session.run)
    close = blocking(aio.Session.close)

    def open(self) -> Self:
        """Start the shell. Again is fine while it lives.

        :raises CommandNotStartedError: the shell could not be started.
        """
        self._portal.call(self._twin.open())
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._twin.__aexit__(kind, error, trace))
