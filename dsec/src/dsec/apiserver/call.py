"""One call under way: the caller's end towards the bus, for a client on a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dsec.bus import Answerer, encode_error
from libdsec.protocol import frames
from libdsec.protocol.errors import DSecError, InternalError, WireError
from libdsec.protocol.frames import END, MAX_PAYLOAD, WINDOW, Frame, Kind

if TYPE_CHECKING:
    from .connection import Connection


class ServerCall:
    """Writes what the answerer says to the client; holds the client to its window."""

    __slots__ = ("_allowance", "_connection", "answerer", "closed", "id")

    def __init__(self, connection: Connection, call: int) -> None:
        self._connection = connection
        self.id = call
        self.answerer: Answerer | None = None
        """Set once the route has returned; an answer may come before."""
        self.closed = False
        self._allowance: dict[int, int] | None = None

    def data(self, stream: int, payload: bytes, flags: int) -> bool:
        connection = self._connection
        if connection.lost or self.closed:
            # unheard, but it must be able to finish: what nobody reads counts as read
            if self.answerer is not None and payload:
                self.answerer.credit(stream, len(payload))
            return True
        connection.write(frames.encode(Kind.DATA, self.id, payload, stream, flags))
        return not connection.congested

    def when_drained(self, resume: Callable[[], None]) -> None:
        self._connection.when_drained(resume)

    def credit(self, stream: int, amount: int) -> None:
        if self._allowance is not None and stream in self._allowance:
            self._allowance[stream] += amount
        self._connection.write(frames.encode_credit(self.id, stream, amount))

    def event(self, payload: bytes) -> None:
        self._connection.write(frames.encode(Kind.EVENT, self.id, payload))

    def result(self, payload: bytes) -> None:
        if len(payload) > MAX_PAYLOAD:
            self.fail(InternalError(f"cannot answer: the answer takes {len(payload)} bytes, a frame {MAX_PAYLOAD}"))
            return
        self._end(Kind.RESULT, payload)

    def error(self, payload: bytes) -> None:
        self._end(Kind.ERROR, payload[:MAX_PAYLOAD])

    def fail(self, error: DSecError) -> None:
        self.error(encode_error(error))

    def take(self, frame: Frame) -> None:
        """A frame of the client for this call.

        :raises WireError: it is none that a caller sends, or goes beyond the window.
        """
        answerer = self.answerer
        if answerer is None:
            return
        kind = frame.kind
        if kind is Kind.CREDIT:
            answerer.credit(frame.stream, frames.credit_amount(frame))
        elif kind is Kind.DATA:
            self._spend(frame)
            answerer.data(frame.stream, frame.payload, frame.flags & END)
        elif kind is Kind.CANCEL:
            answerer.cancel()
        elif kind is Kind.EVENT:
            answerer.event(frame.payload)
        else:
            raise WireError(f"cannot read {kind.name} from a caller")

    def _spend(self, frame: Frame) -> None:
        if self._allowance is None:
            self._allowance = {}
        left = self._allowance.get(frame.stream, WINDOW) - len(frame.payload)
        if left < 0:
            raise WireError(
                f"cannot take DATA of call {self.id}: {-left} bytes beyond the window of stream {frame.stream}"
            )
        self._allowance[frame.stream] = left

    def _end(self, kind: Kind, payload: bytes) -> None:
        if self.closed:
            return
        self.closed = True
        self._connection.forget(self)
        self._connection.write(frames.encode(kind, self.id, payload))
