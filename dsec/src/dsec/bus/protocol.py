"""The contract of a bus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .calls import Answerer, Caller, Request

Handler = Callable[[Request, Caller], Answerer]
"""Takes a call. It may answer before it returns; it never raises."""


class Bus(Protocol):
    def serve(self, subject: str, handler: Handler) -> None:
        """Answer the calls of a subject. A subject has one handler.

        :raises RuntimeError: it has one already.
        """

    def withdraw(self, subject: str) -> None:
        """Stop answering; calls that are open go on. Unknown subjects are fine."""

    def call(self, subject: str, request: Request, caller: Caller) -> Answerer:
        """Open a call.

        :raises UnavailableError: nobody serves the subject; nothing has happened.
        """
