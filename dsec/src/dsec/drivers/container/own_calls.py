"""Calls that the driver itself makes of an init."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from libdsec.protocol.errors import ErrorBody, from_body

_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_error = msgspec.msgpack.Decoder(ErrorBody).decode


class Reply:
    """Waits for one answer without streams."""

    def __init__(self) -> None:
        self._done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._done.add_done_callback(_seen)

    async def wait(self) -> dict[str, Any]:
        """May be given up and waited for again.

        :raises DSecError: what was answered.
        """
        return await asyncio.shield(self._done)

    def result(self, payload: bytes) -> None:
        try:
            self._done.set_result(_decode(payload))
        except msgspec.DecodeError:
            self._done.set_result({})  # that it came is all that these calls are made for

    def error(self, payload: bytes) -> None:
        self._done.set_exception(from_body(_decode_error(payload)))

    def data(self, stream: int, payload: bytes, flags: int) -> bool:
        return True

    def when_drained(self, resume: Callable[[], None]) -> None:
        resume()

    def credit(self, stream: int, amount: int) -> None: ...

    def event(self, payload: bytes) -> None: ...


def _seen(done: asyncio.Future[dict[str, Any]]) -> None:
    """Nobody may be waiting for an error."""
    if not done.cancelled():
        done.exception()
