"""Changes that come as arrays on a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from ._transport.codec import codec
from ._transport.streaming import Streaming
from .protocol.errors import ClientClosedError, WireError
from .protocol.frames import STDOUT
from .protocol.images import Change

_SILENCE_S = 900.0

_decode = msgspec.msgpack.Decoder(tuple[Change, ...]).decode


async def read_changes(exchange: Streaming, method: str) -> AsyncGenerator[Change]:
    """Each change of a call that was started, to its end. Left before that, the call is given up.

    :raises DSecError: how the call ended.
    """
    try:
        while (chunk := await exchange.incoming[STDOUT].get(_SILENCE_S)) is not None:
            try:
                changes = _decode(chunk)
            except msgspec.DecodeError as error:
                raise WireError(f"cannot read the answer to {method}: {error}") from None
            for change in changes:
                yield change
        codec(method).decode(await exchange.answer(_SILENCE_S))
    finally:
        exchange.abandon(ClientClosedError("cannot read further: this reading was left"))
