"""Reading a request's arguments, of which unknown fields and wrong types are refused by name; telling of progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from dsec.bus import Caller, Request
from libdsec.protocol.calls import METHODS, Empty
from libdsec.protocol.environment import BuildProgress
from libdsec.protocol.errors import InvalidArgumentError

T = TypeVar("T", bound=msgspec.Struct)


class _NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    """`Empty` as a request: what is not known is refused."""


_DECODERS = {
    method: msgspec.msgpack.Decoder(_NoArguments if types[0] is Empty else types[0])
    for method, types in METHODS.items()
}
encode = msgspec.msgpack.Encoder().encode


def read(request: Request, expected: type[T]) -> T:
    """:raises InvalidArgumentError: says which field."""
    return cast(T, read_any(request))


def read_any(request: Request) -> Any:
    """:raises InvalidArgumentError: says which field."""
    try:
        return _DECODERS[request.method].decode(request.args)
    except msgspec.DecodeError as error:
        raise InvalidArgumentError(f"cannot read the arguments of {request.method}: {error}") from None


def progress_to(caller: Caller) -> Callable[[BuildProgress], None]:
    """Tells the caller of each step of something long, as an EVENT."""

    def progress(step: BuildProgress) -> None:
        caller.event(encode(step))

    return progress
