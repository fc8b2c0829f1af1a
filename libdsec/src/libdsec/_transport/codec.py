"""The bytes of a CALL and the value of a RESULT, with everything that depends on the method alone made once."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from ..protocol.calls import METHODS
from ..protocol.errors import DSecError, ErrorBody, InvalidArgumentError, WireError, from_body
from ..protocol.frames import MAX_PAYLOAD

_encode = msgspec.msgpack.Encoder().encode
_decode_error = msgspec.msgpack.Decoder(ErrorBody).decode


class Codec:
    """One method of the service."""

    __slots__ = ("_decode", "_prefix", "name")

    def __init__(self, name: str, answer: type[msgspec.Struct]) -> None:
        self.name = name
        # a map of two, up to where the arguments follow: the same bytes as protocol.calls.encode_call
        self._prefix = b"\x82" + _encode("method") + _encode(name) + _encode("args")
        self._decode = msgspec.msgpack.Decoder(answer).decode

    def encode(self, args: msgspec.Struct) -> bytes:
        """The payload of the CALL frame.

        :raises InvalidArgumentError: the arguments are too large for one frame, or hold what cannot be sent.
        """
        try:
            payload = self._prefix + _encode(args)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(f"cannot send the arguments of {self.name}: {error}") from None
        if len(payload) > MAX_PAYLOAD:
            raise InvalidArgumentError(
                f"cannot send the arguments of {self.name}: they take {len(payload)} bytes and the limit is "
                f"{MAX_PAYLOAD}; put large data into a file or standard input",
                method=self.name,
            )
        return payload

    def decode(self, payload: bytes) -> Any:
        """The answer.

        :raises WireError: the payload is not one.
        """
        try:
            return self._decode(payload)
        except msgspec.DecodeError as error:
            raise WireError(f"cannot read the answer of {self.name}: {error}", method=self.name) from None


@functools.cache
def codec(name: str) -> Codec:
    return Codec(name, METHODS[name][1])


def encode_event(event: msgspec.Struct) -> bytes:
    return _encode(event)


def decode_error(payload: bytes) -> DSecError:
    """The error in an ERROR frame.

    :raises WireError: the payload is not one.
    """
    try:
        return from_body(_decode_error(payload))
    except msgspec.DecodeError as error:
        raise WireError(f"cannot read an ERROR: {error}") from None
