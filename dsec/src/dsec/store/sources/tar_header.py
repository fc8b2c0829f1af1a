"""Headers of a tar: blocks of 512 bytes in the forms of v7, ustar and GNU, and the records of a pax header.

Formats: POSIX.1-2017 `pax` (ustar and extended headers) and the GNU tar manual's chapter on its own.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from zlib import adler32

from libdsec.protocol.errors import InvalidArgumentError

BLOCK: Final = 512
ZERO_BLOCK: Final = bytes(BLOCK)

_FIELDS: Final = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x")
_CHECKSUM: Final = slice(148, 156)
_ADLER_MODULUS: Final = 65_521
_MOST: Final = BLOCK * 255
_NUMBER: Final = re.compile(rb"[ \0]*([0-7]*)[ \0]*")
_DECIMAL: Final = re.compile(rb"(-?)(\d{1,20})(?:\.(\d*))?")

EXTENDED: Final = b"xXgLK"
"""Kinds of headers that say something about the member behind them."""

Records = dict[bytes, bytes]


@dataclass(slots=True)
class Header:
    """A header's fields; `name` includes a ustar prefix, `mtime` is in seconds, `raw` is the whole block."""

    name: bytes
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    kind: bytes
    link: bytes
    major: int
    minor: int
    raw: bytes


class HeaderError(Exception):
    """What is wrong with a header; the reader adds which member it is."""


def parse_header(block: bytes) -> Header:
    """The header in `block`; of an extended one only name, kind and size.

    Raises `HeaderError` for a wrong checksum or a number that is none.
    """
    name, mode, uid, gid, size, mtime, checksum, kind, link, magic, _, _, major, minor, prefix = _FIELDS.unpack(block)
    _check_sum(block, _number(checksum, "checksum"))
    name = name.partition(b"\0")[0]
    if magic.startswith(b"ustar\0") and prefix[0]:
        name = prefix.partition(b"\0")[0] + b"/" + name
    length = _number(size, "size")
    if length < 0:
        raise HeaderError("has a negative size")
    if kind in EXTENDED:
        return Header(name, 0, 0, 0, length, 0, kind, b"", 0, 0, block)
    device = kind in b"34"
    return Header(
        name,
        _number(mode, "mode"),
        _number(uid, "uid"),
        _number(gid, "gid"),
        length,
        _number(mtime, "mtime"),
        kind,
        link.partition(b"\0")[0],
        _number(major, "major") if device else 0,
        _number(minor, "minor") if device else 0,
        block,
    )


def _check_sum(block: bytes, expected: int) -> None:
    """Adler-32 holds, in its lower half, one more than the sum of the bytes modulo 65521; that is compared.

    Adding up 512 bytes in Python itself takes a third of the time of reading a tar.
    """
    field = 8 * ord(" ") - sum(block[_CHECKSUM])
    if ((adler32(block) & 0xFFFF) - 1 + field - expected) % _ADLER_MODULUS == 0 and expected <= _MOST:
        return
    # some old writers added up signed bytes
    total = sum(block) + field
    if total - 256 * sum(1 for byte in block[:148] + block[156:] if byte > 127) != expected:
        raise HeaderError(f"has a wrong header checksum (is {total}, says {expected})")


@lru_cache(maxsize=4096)
def _number(field: bytes, what: str) -> int:
    first = field[0]
    if first >= 0x80:
        value = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
        if first & 0x40:
            value -= 1 << (8 * len(field) - 1)
        return value
    match = _NUMBER.fullmatch(field)
    if match is None:
        # text behind a NUL is not part of the number
        match = _NUMBER.fullmatch(field.lstrip(b" ").partition(b"\0")[0])
        if match is None:
            raise HeaderError(f"has a {what} that is not a number")
    return int(match[1] or b"0", 8)


def parse_records(data: bytes) -> list[tuple[bytes, bytes]]:
    """The records of a pax header in order. Raises `HeaderError` for one that does not fit its own length."""
    records: list[tuple[bytes, bytes]] = []
    position = 0
    size = len(data)
    while position < size:
        space = data.find(b" ", position, position + 10)
        digits = data[position:space] if space > 0 else b""
        if not digits.isdigit():
            raise HeaderError("has a pax record without a length")
        end = position + int(digits)
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end > size or end <= space + 1 or not equals or not key or data[end - 1] != 0x0A:
            raise HeaderError("has a pax record that does not fit its length")
        records.append((key, value))
        position = end
    return records


def record_integer(records: Records, key: bytes, default: int) -> int:
    """A whole decimal number, not negative. Raises `HeaderError`."""
    value = records.get(key)
    if value is None:
        return default
    if not value.isdigit() or len(value) > 20:
        raise HeaderError(f"has a pax {key.decode('ascii', 'replace')} that is not a number")
    return int(value)


def record_time(records: Records, key: bytes, seconds: int) -> int:
    """A time with a fraction, in nanoseconds; digits beyond are cut off. Raises `HeaderError`."""
    value = records.get(key)
    if value is None:
        return seconds * 1_000_000_000
    match = _DECIMAL.fullmatch(value)
    if match is None:
        raise HeaderError(f"has a pax {key.decode('ascii', 'replace')} that is not a time")
    nanoseconds = int(match[2]) * 1_000_000_000 + int((match[3] or b"")[:9].ljust(9, b"0"))
    return -nanoseconds if match[1] else nanoseconds


def member_path(raw: bytes, what: str = "name") -> bytes:
    """A member's name as a path below the root (`b""` is the root). Raises `HeaderError` if it leads outside."""
    if raw.startswith(b"/"):
        raise HeaderError(f"has an absolute {what}")
    path = raw[2:] if raw.startswith(b"./") else raw
    path = path.rstrip(b"/")
    if path.startswith((b".", b"/")) or b"/." in path or b"//" in path:
        parts = [part for part in path.split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            raise HeaderError(f"has a {what} with '..' in it")
        path = b"/".join(parts)
    if not path and raw.strip(b"./"):
        raise HeaderError(f"has an empty {what}")
    return path


def named(member: bytes, why: str) -> InvalidArgumentError:
    """The error of a damaged or hostile tar; `details` names the member."""
    name = member[:400].decode("utf-8", "backslashreplace")
    return InvalidArgumentError(f"cannot read tar: member {name!r} {why}", member=name, why=why)
