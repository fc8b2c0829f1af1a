"""The bus within one process."""

from __future__ import annotations

from libdsec.protocol.errors import UnavailableError

from .calls import Answerer, Caller, Request
from .protocol import Handler


class LocalBus:
    """Calls are calls: nothing is copied, queued or scheduled."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def serve(self, subject: str, handler: Handler) -> None:
        if subject in self._handlers:
            raise RuntimeError(f"subject {subject!r} is served already")
        self._handlers[subject] = handler

    def withdraw(self, subject: str) -> None:
        self._handlers.pop(subject, None)

    def call(self, subject: str, request: Request, caller: Caller) -> Answerer:
        handler = self._handlers.get(subject)
        if handler is None:
            raise UnavailableError(f"cannot call {request.method}: nobody serves {subject!r}", subject=subject)
        return handler(request, caller)
