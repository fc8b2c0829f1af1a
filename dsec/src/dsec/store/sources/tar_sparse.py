"""Sparse files in a tar: GNU's old form and the three that it puts into pax headers (0.0, 0.1, 1.0)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final

from dsec.store.sources.base import Extent
from dsec.store.sources.tar_header import BLOCK, Header, HeaderError, Records, _number, record_integer

MAX_EXTENTS: Final = 1_000_000
"""Of one member."""

_PAIR: Final = struct.Struct("12s12s")
_OLD_PAIRS: Final = slice(386, 482)
_OLD_EXTENDED: Final = 482
_OLD_SIZE: Final = slice(483, 495)
_MORE_PAIRS: Final = slice(0, 504)
_MORE_EXTENDED: Final = 504

ReadBlock = Callable[[], bytes]
"""Reads the next 512 bytes of the tar."""


def old_map(header: Header, read_block: ReadBlock) -> tuple[int, list[Extent]]:
    """Real size and extents of a member of type `S`, whose map may go on in blocks behind the header."""
    extents = list(_pairs(header.raw[_OLD_PAIRS]))
    more = header.raw[_OLD_EXTENDED]
    while more:
        block = read_block()
        extents.extend(_pairs(block[_MORE_PAIRS]))
        more = block[_MORE_EXTENDED]
        if len(extents) > MAX_EXTENTS:
            raise HeaderError(f"has more than {MAX_EXTENTS} sparse extents")
    size = _number(header.raw[_OLD_SIZE], "real size")
    return size, extents


def _pairs(area: bytes) -> Iterable[Extent]:
    for offset, length in _PAIR.iter_unpack(area):
        if offset[0] or length[0]:
            yield _number(offset, "sparse offset"), _number(length, "sparse length")


def pax_map(records: Records, repeated: list[tuple[bytes, bytes]]) -> tuple[int, list[Extent]] | None:
    """Real size and extents of formats 0.0 and 0.1; `repeated` are the records in order. None: not such a member."""
    if b"GNU.sparse.size" not in records or records.get(b"GNU.sparse.major", b"0") != b"0":
        return None
    size = record_integer(records, b"GNU.sparse.size", 0)
    if (joined := records.get(b"GNU.sparse.map")) is not None:
        numbers = joined.split(b",") if joined else []
    else:
        numbers = [value for key, value in repeated if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes")]
    return size, _join(numbers)


def is_pax_1(records: Records) -> bool:
    """Whether the member's map stands in front of its data (format 1.0)."""
    return records.get(b"GNU.sparse.major") == b"1" and records.get(b"GNU.sparse.minor") == b"0"


def pax_1_map(records: Records, read_block: ReadBlock) -> tuple[int, list[Extent], int]:
    """Real size, extents, and the bytes that the map itself took of the member's data."""
    size = record_integer(records, b"GNU.sparse.realsize", 0)
    text = b""
    used = 0
    numbers: list[bytes] = []
    wanted = 1
    while len(numbers) < wanted:
        block = read_block()
        used += BLOCK
        text += block
        *lines, text = text.split(b"\n")
        numbers.extend(lines[: wanted - len(numbers) if wanted > 1 else None])
        if wanted == 1 and numbers:
            if not numbers[0].isdigit() or len(numbers[0]) > 7 or int(numbers[0]) > MAX_EXTENTS:
                raise HeaderError("has a sparse map without a sensible length")
            wanted = 1 + 2 * int(numbers[0])
        if len(text) > BLOCK and len(numbers) < wanted:
            raise HeaderError("has a damaged sparse map")
    return size, _join(numbers[1:wanted]), used


def _join(numbers: list[bytes]) -> list[Extent]:
    if len(numbers) % 2 or len(numbers) > 2 * MAX_EXTENTS:
        raise HeaderError("has a damaged sparse map")
    if any(not number.isdigit() or len(number) > 20 for number in numbers):
        raise HeaderError("has a sparse map with something that is not a number")
    return [(int(numbers[i]), int(numbers[i + 1])) for i in range(0, len(numbers), 2)]


def check_extents(extents: list[Extent], size: int, stored: int) -> list[Extent]:
    """The extents without empty ones. Raises `HeaderError` if they overlap, leave the file or are not all stored."""
    end = 0
    kept: list[Extent] = []
    for offset, length in extents:
        if offset < end or length < 0 or offset + length > size:
            raise HeaderError("has a sparse map that does not fit the file")
        end = offset + length
        if length:
            kept.append((offset, length))
    if sum(length for _, length in kept) != stored:
        raise HeaderError("has a sparse map that does not fit the stored data")
    return kept
