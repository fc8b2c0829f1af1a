"""Changes that come as arrays on a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from ._streamed import streamed
from ._transport.streaming import Streaming
from .protocol.errors import WireError
from .protocol.images import Change

_decode = msgspec.msgpack.Decoder(tuple[Change, ...]).decode


async def read_changes(exchange: Streaming, method: str) -> AsyncGenerator[Change]:
    """Each change of a call that was started, to its end. Left before that, the call is given up.

    :raises DSecError: how the call ended.
    """
    async with aclosing(streamed(exchange, method)) as pieces:
        async for piece in pieces:
            try:
                changes = _decode(piece)
            except msgspec.DecodeError as error:
                raise WireError(f"cannot read the answer to {method}: {error}") from None
            for change in changes:
                yield change
