"""The two ends of a call, and what opens one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from libdsec.protocol.errors import DSecError
from libdsec.protocol.steps import StepTag


class Request(NamedTuple):
    """What opens a call."""

    method: str
    args: msgspec.Raw
    """The MessagePack map of the method's request type, not yet read."""
    principal: str
    """Who asks, as iam named them."""
    step: StepTag | None = None
    """Its place in a command log, as the client said it."""


class Caller(Protocol):
    """The asking end. Its methods never raise and never wait."""

    def data(self, stream: int, payload: bytes, flags: int) -> bool:
        """Bytes of a stream. False: the caller is congested; its source should rest until `when_drained`."""

    def when_drained(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, when data may flow again (at once if it may now, and when the caller has gone)."""

    def credit(self, stream: int, amount: int) -> None:
        """The answerer has consumed input and takes so many bytes more."""

    def event(self, payload: bytes) -> None:
        """News before the end; a MessagePack map."""

    def result(self, payload: bytes) -> None:
        """The answer, a MessagePack map. Ends the call."""

    def error(self, payload: bytes) -> None:
        """The refusal, an encoded `ErrorBody`. Ends the call."""


class Answerer(Protocol):
    """The answering end. Its methods never raise and never wait; after the end of the call they do nothing."""

    def data(self, stream: int, payload: bytes, flags: int) -> None:
        """Input."""

    def credit(self, stream: int, amount: int) -> None:
        """The caller has consumed output and takes so many bytes more."""

    def event(self, payload: bytes) -> None:
        """A MessagePack map, such as a resize."""

    def cancel(self) -> None:
        """The answer is no longer wanted; the call still ends with one result or error."""

    def abandon(self) -> None:
        """The caller has gone. What only makes sense with a listener ends; everything else goes on unheard."""


_encode = msgspec.msgpack.Encoder(enc_hook=str).encode


def encode_error(error: DSecError) -> bytes:
    """The payload of `Caller.error`. A detail that no wire can carry goes as its text."""
    return _encode(error.body())
