"""What a call sends on stream 2, to its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ._transport.codec import codec
from ._transport.streaming import Streaming
from .protocol.errors import ClientClosedError
from .protocol.frames import STDOUT

_SILENCE_S = 900.0


async def streamed(exchange: Streaming, method: str) -> AsyncGenerator[bytes]:
    """Each piece of a call that was started. Left before the end, the call is given up.

    :raises DSecError: how the call ended, where it ended badly.
    """
    try:
        while (piece := await exchange.incoming[STDOUT].get(_SILENCE_S)) is not None:
            yield piece
        codec(method).decode(await exchange.answer(_SILENCE_S))
    finally:
        exchange.abandon(ClientClosedError(f"cannot go on with {method}: its answer was left"))
