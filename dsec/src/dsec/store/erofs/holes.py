"""Holes: how fine they are worth, and where they are in a buffer.

A file with a hole needs an index of 8 bytes for each chunk of it, a file without needs one index in all. So a hole
must be large enough to pay for the file's indexes: with chunks of g bytes in a file of n, one hole saves g and the
indexes cost 8·n/g, which is even at g = √(8·n). That is the *granule*: 4 KiB up to files of 2 MiB, 16 KiB at 16 MiB,
128 KiB at 1 GiB, and never more than √(n/8) indexes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Final

from dsec.store.digest import STORE_CHUNK_SIZE
from dsec.store.erofs.format import BLOCK_SIZE

_ZEROS: Final = {1 << bits: bytes(1 << bits) for bits in range(12, STORE_CHUNK_SIZE.bit_length())}
ZERO_CHUNK: Final = _ZEROS[STORE_CHUNK_SIZE]


def granule(size: int) -> int:
    """Bytes of the smallest hole that is kept in a file of `size` bytes: a power of two, at least a block."""
    least = isqrt(8 * size)
    return max(BLOCK_SIZE, 1 << (least - 1).bit_length()) if least > 1 else BLOCK_SIZE


def data_parts(buffer: bytearray, start: int, end: int, unit: int) -> list[tuple[int, int]] | None:
    """Parts of `buffer[start:end]` with data, as (start, end) on multiples of `unit` from `start`; None means all.

    `unit` is a granule of at most `STORE_CHUNK_SIZE`. The last part of the range may be shorter than a unit.
    """
    # only a unit whose first byte is zero is looked at: most data is passed over without being read
    heads = buffer[start:end:unit]
    candidate = heads.find(0)
    if candidate < 0:
        return None
    parts: list[tuple[int, int]] = []
    position = start
    while candidate >= 0:
        low = start + candidate * unit
        high = min(low + unit, end)
        if buffer.startswith(_zeros(high - low), low):
            if low > position:
                parts.append((position, low))
            position = high
        candidate = heads.find(0, candidate + 1)
    if position == start:
        return None
    if position < end:
        parts.append((position, end))
    return parts


def _zeros(length: int) -> bytes:
    return _ZEROS.get(length) or bytes(length)


def outward(extents: Sequence[tuple[int, int]], unit: int, size: int) -> list[tuple[int, int]]:
    """Extents grown to multiples of `unit` and joined, as (start, end), the last `end` at most `size`."""
    spans: list[tuple[int, int]] = []
    for offset, length in extents:
        if not length:
            continue
        start = offset // unit * unit
        end = min(-(-(offset + length) // unit) * unit, size)
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans
