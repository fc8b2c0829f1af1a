"""The asking end of a call that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable

from .calls import Answerer


class Unheard:
    """Grants what comes and throws it away, so that the call goes on to its end."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer

    def data(self, stream: int, payload: bytes, flags: int) -> bool:
        if payload:
            self._answerer.credit(stream, len(payload))
        return True

    def when_drained(self, resume: Callable[[], None]) -> None:
        resume()

    def credit(self, stream: int, amount: int) -> None: ...

    def event(self, payload: bytes) -> None: ...

    def result(self, payload: bytes) -> None: ...

    def error(self, payload: bytes) -> None: ...
