"""One framing for every byte stream of ours, without I/O.

A frame is a 16-byte header and a payload, all integers little-endian:

    offset 0   u32  length of the payload in bytes, at most MAX_PAYLOAD
    offset 4   u8   kind (Kind)
    offset 5   u8   flags: bit 0 END, the last frame of this stream; all others 0
    offset 6   u16  stream within the call: 0 the call itself, 1 stdin, 2 stdout, 3 stderr
    offset 8   u64  call, chosen by the caller, unique on its connection; 0 is the connection itself

Control payloads (HELLO, CALL, RESULT, ERROR, EVENT) are MessagePack maps with string keys, DATA payloads are raw
bytes, CREDIT is one u32, CANCEL and ACK are empty. On a SOCK_SEQPACKET socket one packet is one frame; on a byte
stream frames follow each other. Rules of flow and of change: docs/wire.md. The Rust twin is `aether/src/wire.rs`;
both read and write the files of tests/golden/.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

from .errors import WireError

GENERATION = 1
"""Raised when the meaning of existing bytes changes; additions do not raise it (docs/wire.md)."""

MAX_PAYLOAD = 256 * 1024
"""Bytes. The largest payload of one frame, of any kind."""

DATA_CHUNK = 64 * 1024
"""Bytes. What a sender puts into one DATA frame at most, by convention."""

WINDOW = 256 * 1024
"""Bytes a sender may have in flight on one stream of one call before it needs CREDIT."""

END = 1
"""Flag: the last frame of this stream."""

STDIN, STDOUT, STDERR = 1, 2, 3

_HEADER = struct.Struct("<IBBHQ")
HEADER_SIZE = _HEADER.size


class Kind(enum.IntEnum):
    HELLO = 1
    CALL = 2
    RESULT = 3
    ERROR = 4
    DATA = 5
    EVENT = 6
    CREDIT = 7
    CANCEL = 8
    ACK = 9


_KINDS = {int(k): k for k in Kind}


class Frame(NamedTuple):
    kind: Kind
    call: int
    payload: bytes = b""
    stream: int = 0
    flags: int = 0

    @property
    def end(self) -> bool:
        return bool(self.flags & END)


def encode(kind: Kind, call: int, payload: bytes = b"", stream: int = 0, flags: int = 0) -> bytes:
    """One frame as bytes.

    :raises WireError: the payload is larger than MAX_PAYLOAD.
    """
    if len(payload) > MAX_PAYLOAD:
        raise WireError(f"cannot send a frame of {len(payload)} bytes: the limit is {MAX_PAYLOAD}")
    return _HEADER.pack(len(payload), kind, flags, stream, call) + payload


def encode_credit(call: int, stream: int, amount: int) -> bytes:
    """A grant of `amount` further bytes on a stream."""
    return _HEADER.pack(4, Kind.CREDIT, 0, stream, call) + amount.to_bytes(4, "little")


def credit_amount(frame: Frame) -> int:
    """:raises WireError: the payload is not one u32."""
    if len(frame.payload) != 4:
        raise WireError("cannot read a CREDIT frame: its payload is not 4 bytes")
    return int.from_bytes(frame.payload, "little")


def _header(data: bytes | bytearray | memoryview, offset: int) -> tuple[int, Kind, int, int, int]:
    length, raw_kind, flags, stream, call = _HEADER.unpack_from(data, offset)
    kind = _KINDS.get(raw_kind)
    if kind is None:
        raise WireError(f"cannot read a frame of unknown kind {raw_kind}")
    if length > MAX_PAYLOAD:
        raise WireError(f"cannot read a frame of {length} bytes: the limit is {MAX_PAYLOAD}")
    if flags & ~END:
        raise WireError(f"cannot read a frame with unknown flags {flags:#x}")
    return length, kind, flags, stream, call


def decode_packet(packet: bytes | memoryview) -> Frame:
    """The frame in one SOCK_SEQPACKET packet.

    :raises WireError: the packet is not exactly one frame.
    """
    if len(packet) < HEADER_SIZE:
        raise WireError(f"cannot read a frame: {len(packet)} bytes are less than a header")
    length, kind, flags, stream, call = _header(packet, 0)
    if len(packet) != HEADER_SIZE + length:
        raise WireError("cannot read a frame: the packet's size is not the frame's")
    return Frame(kind, call, bytes(packet[HEADER_SIZE:]), stream, flags)


class Decoder:
    """Frames out of a byte stream, however it is cut. Holds at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Every frame completed by `data`, in order.

        :raises WireError: the stream is broken; the decoder must not be used again.
        """
        buffer = self._buffer
        buffer += data
        offset = 0
        while len(buffer) - offset >= HEADER_SIZE:
            length, kind, flags, stream, call = _header(buffer, offset)
            end = offset + HEADER_SIZE + length
            if len(buffer) < end:
                break
            yield Frame(kind, call, bytes(buffer[offset + HEADER_SIZE : end]), stream, flags)
            offset = end
        if offset:
            del buffer[:offset]

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame held back."""
        return len(self._buffer)
