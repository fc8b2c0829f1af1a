"""MessagePack arrays that were sent one after the other, taken apart again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from .protocol.errors import WireError

_check = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def arrays(frames: Sequence[bytes]) -> Iterator[bytes]:
    """Each array of `frames`. As they were sent each frame is one; a command log gives them joined, or cut anew.

    :raises WireError: they are no arrays.
    """
    whole = [frame for frame in frames if frame]
    try:
        for frame in whole:
            _check(frame)
    except msgspec.DecodeError:
        return _split(b"".join(frames))
    return iter(whole)


def _split(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        try:
            end = _end(data, start)
        except (IndexError, ValueError):
            end = len(data) + 1
        if end > len(data):
            raise WireError("cannot read what a file operation sent: it is cut off")
        yield data[start:end]
        start = end


_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_SIZED |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
"""First byte of binary data, extensions and strings → bytes of the length that follows, bytes beside it."""

_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_FIXED |= {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_HOLDING = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""First byte of arrays and maps → bytes of the count that follows, values for each."""


def _end(data: bytes, at: int) -> int:
    """Where the value that begins at `at` ends. Without recursion: what nests is counted.

    :raises ValueError, IndexError: there is no value.
    """
    missing = 1
    while missing:
        missing -= 1
        first = data[at]
        at += 1
        if first < 0x80 or first >= 0xE0:
            continue
        if first < 0xA0:
            missing += first & 0x0F if first >= 0x90 else 2 * (first & 0x0F)
        elif first < 0xC0:
            at += first & 0x1F
        elif first in _FIXED:
            at += _FIXED[first]
        elif first in _SIZED:
            width, beside = _SIZED[first]
            at += width + beside + int.from_bytes(data[at : at + width])
        elif first in _HOLDING:
            width, each = _HOLDING[first]
            missing += each * int.from_bytes(data[at : at + width])
            at += width
        else:
            raise ValueError(f"0x{first:02x} begins no value")
        if missing > len(data):
            raise ValueError("more values than bytes")
    return at
