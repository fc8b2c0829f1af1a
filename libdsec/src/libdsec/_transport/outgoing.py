"""Bytes on their way to the server on one stream: never more than it granted."""

from __future__ import annotations

from collections.abc import Callable

from ..protocol.frames import DATA_CHUNK, WINDOW


class Outgoing:
    """Holds one offered piece of data and sends of it what the window allows; credit sends more.

    It needs nobody to wait for it: what was offered goes out as grants arrive.
    """

    __slots__ = ("_end", "_granted", "_rest", "_send", "closed")

    def __init__(self, send: Callable[[bytes, bool], None]) -> None:
        self._send = send
        self._rest = memoryview(b"")
        self._granted = WINDOW
        self._end = False
        self.closed = False
        """END was sent, or the call is over: nothing more goes out."""

    @property
    def drained(self) -> bool:
        """Whether the next piece can be offered."""
        return self.closed or (not self._rest and not self._end)

    def offer(self, data: bytes | bytearray | memoryview, end: bool = False) -> None:
        """Take `data`, which must not change until `drained`; `end` makes it the last."""
        self._rest = memoryview(data).cast("B")
        self._end = end
        self._pump()

    def grant(self, amount: int) -> None:
        self._granted += amount
        self._pump()

    def stop(self) -> None:
        """The call is over."""
        self.closed = True
        self._rest = memoryview(b"")

    def _pump(self) -> None:
        while not self.closed and self._rest and self._granted > 0:
            size = min(len(self._rest), DATA_CHUNK, self._granted)
            piece, self._rest = bytes(self._rest[:size]), self._rest[size:]
            self._granted -= size
            last = self._end and not self._rest
            self.closed = last
            self._send(piece, last)
        if self._end and not self.closed and not self._rest:
            self.closed = True
            self._send(b"", True)
