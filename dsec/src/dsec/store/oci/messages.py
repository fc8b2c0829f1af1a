"""What a pull and its child processes say to each other: frames of 4 bytes of length and a msgpack value."""

from __future__ import annotations

from typing import Final

import msgspec

from dsec.store.build import LayerBuild
from libdsec.protocol.errors import ErrorBody, WireError
from libdsec.protocol.images import RegistryLogin

from .source import LayerBlob, Resolved

MAX_FRAME: Final = 256 * 1024 * 1024
"""The largest is a layer's digests, 32 bytes a chunk, or the names of directories that it does not describe."""
_LENGTH: Final = 4


class Start(msgspec.Struct, tag=True, frozen=True):
    """The first frame to a child: whose layers its jobs are about."""

    source: str
    login: RegistryLogin | None
    plain_http: bool


class Resolve(msgspec.Struct, tag=True, frozen=True):
    """Answered with `Resolved`."""


class Convert(msgspec.Struct, tag=True, frozen=True):
    """Answered with `Built`, after `Told`s."""

    layer: LayerBlob
    directory: str
    name: str


class Inherit(msgspec.Struct, tag=True, frozen=True):
    """Answered with `Built`."""

    build: LayerBuild
    below: tuple[str, ...]
    complete: bool


class Found(msgspec.Struct, tag=True, frozen=True):
    resolved: Resolved


class Told(msgspec.Struct, tag=True, frozen=True):
    bytes: int
    """Read since the last one."""


class Built(msgspec.Struct, tag=True, frozen=True):
    build: LayerBuild


class Failed(msgspec.Struct, tag=True, frozen=True):
    error: ErrorBody


Job = Start | Resolve | Convert | Inherit
Answer = Found | Told | Built | Failed

_encode = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(Job).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


def frame(message: Job | Answer) -> bytes:
    payload = _encode(message)
    return len(payload).to_bytes(_LENGTH, "little") + payload


class Frames:
    """Payloads out of a stream of bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are whole now.

        :raises WireError: too large a frame.
        """
        self._buffer += data
        found: list[bytes] = []
        while len(self._buffer) >= _LENGTH:
            length = int.from_bytes(self._buffer[:_LENGTH], "little")
            if length > MAX_FRAME:
                raise WireError(f"cannot read a frame of {length} bytes")
            if len(self._buffer) < _LENGTH + length:
                break
            found.append(bytes(self._buffer[_LENGTH : _LENGTH + length]))
            del self._buffer[: _LENGTH + length]
        return found
