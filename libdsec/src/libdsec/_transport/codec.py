"""The bytes of a CALL and the value of a RESULT, with everything that depends on the method alone made once."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from ..protocol.calls import METHODS
from ..protocol.errors import DSecError, ErrorBody, InvalidArgumentError, WireError, from_body
from ..protocol.frames import MAX_PAYLOAD
from ..protocol.steps import StepTag

_encode = msgspec.msgpack.Encoder().encode
_decode_error = msgspec.msgpack.Decoder(ErrorBody).decode
_STEP = _encode("step")


class Codec:
    """One method of the service."""

    __slots__ = ("_decode", "_prefix", "_step_prefix", "name")

    def __init__(self, name: str, answer: type[msgspec.Struct]) -> None:
        self.name = name
        # maps of two and of three, up to where the arguments follow: the same bytes as protocol.calls.encode_call
        start = _encode("method") + _encode(name) + _encode("args")
        self._prefix = b"\x82" + start
        self._step_prefix = b"\x83" + start
        self._decode = msgspec.msgpack.Decoder(answer).decode

    def encode(self, args: msgspec.Struct, step: StepTag | None = None) -> bytes:
        """The payload of the CALL frame.

        :raises InvalidArgumentError: the arguments are too large for one frame, or hold what cannot be sent.
        """
        try:
            if step is None:
                payload = self._prefix + _encode(args)
            else:
                payload = b"".join((self._step_prefix, _encode(args), _STEP, _encode(step)))
        except (TypeError, ValueError, OverflowError) as error:
            raise self.unsendable(error) from None
        if len(payload) > MAX_PAYLOAD:
            raise InvalidArgumentError(
                f"cannot send the arguments of {self.name}: they take {len(payload)} bytes and the limit is "
                f"{MAX_PAYLOAD}; put large data into a file or standard input",
                method=self.name,
            )
        return payload

    def unsendable(self, error: Exception) -> InvalidArgumentError:
        """What the arguments' failed encoding is to whoever gave them."""
        return InvalidArgumentError(f"cannot send the arguments of {self.name}: {error}")

    def decode(self, payload: bytes | msgspec.Raw) -> Any:
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


def decode_error(payload: bytes | msgspec.Raw) -> DSecError:
    """The error in an ERROR frame.

    :raises WireError: the payload is not one.
    """
    try:
        return from_body(_decode_error(payload))
    except msgspec.DecodeError as error:
        raise WireError(f"cannot read an ERROR: {error}") from None
