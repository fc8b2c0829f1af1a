"""A layer's table: what was written is read, and nothing else is believed."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.store.digest import LAYER_GENERATION, chunk_digest, layer_digest
from dsec.store.records import LayerFile
from dsec.store.remote.table import (
    PACK_BYTES,
    RAW,
    ZEROS,
    ZSTD,
    LayerTable,
    Pack,
    Place,
    decode_table,
    encode_table,
    join_places,
)
from libdsec.protocol.errors import DSecError, IntegrityError, UnsupportedOperationError

CHUNK = 4096
METADATA = hashlib.sha256(b"metadata").digest()


def a_table(chunks: list[int], last: int, packs: int = 2) -> LayerTable:
    """Chunk n is full of the byte `chunks[n]`, 0 lies nowhere; the last one has `last` bytes."""
    contents = [bytes([value]) * CHUNK for value in chunks]
    contents[-1:] = [each[:last] for each in contents[-1:]]
    digests = [chunk_digest(content) for content in contents]
    places, ends = [], [0] * packs
    for number, content in enumerate(contents):
        if not any(content):
            places.append(Place(0, 0, 0, ZEROS))
            continue
        pack, encoding = number % packs, RAW if number % 3 or len(content) == 1 else ZSTD
        stored = len(content) if encoding == RAW else len(content) - 1
        places.append(Place(pack, ends[pack], stored, encoding))
        ends[pack] += stored
    known = tuple(Pack(hashlib.sha256(bytes([number])).digest(), end or 1) for number, end in enumerate(ends))
    data_bytes = max(0, len(chunks) - 1) * CHUNK + (last if chunks else 0)
    digest = layer_digest(METADATA, digests, chunk_size=CHUNK)
    file = LayerFile(1, LAYER_GENERATION, digest, METADATA, 4096, data_bytes, CHUNK, b"".join(digests), 7)
    return LayerTable(file, known[: len(chunks)], join_places(places) if len(known[: len(chunks)]) == packs else b"")


def resealed(content: bytes) -> bytes:
    """With a checksum that matches, as somebody would write it who wants to be believed."""
    return content[:-32] + hashlib.sha256(content[:-32]).digest()


TABLE = a_table([1, 0, 2, 3, 1, 4], 100)
ENCODED = encode_table(TABLE)
DIGEST = TABLE.file.digest
HEADER = 128
DIGESTS = HEADER + 2 * 40
PLACES = DIGESTS + 6 * 32


@given(st.lists(st.integers(0, 255), min_size=2, max_size=20), st.integers(1, CHUNK))
@settings(max_examples=50, deadline=None)
def test_what_is_written_is_read(chunks: list[int], last: int) -> None:
    table = a_table(chunks, last)
    assert decode_table(encode_table(table), table.file.digest) == table


def test_a_layer_without_data() -> None:
    digest = layer_digest(METADATA, [], chunk_size=CHUNK)
    table = LayerTable(LayerFile(1, LAYER_GENERATION, digest, METADATA, 4096, 0, CHUNK, b"", 0), (), b"")
    assert decode_table(encode_table(table), digest) == table


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_other_byte_is_found(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ENCODED) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != ENCODED[at]))
    changed = ENCODED[:at] + bytes([value]) + ENCODED[at + 1 :]
    with pytest.raises((IntegrityError, UnsupportedOperationError)):
        decode_table(changed, DIGEST)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_what_is_resealed_leads_nowhere_outside(data: st.DataObject) -> None:
    """Bytes at will, with a checksum that matches: an error of ours, or a table that has nothing wrong in it."""
    at = data.draw(st.integers(0, len(ENCODED) - 33))
    some = data.draw(st.binary(min_size=1, max_size=16))
    changed = resealed(ENCODED[:at] + some + ENCODED[at + len(some) :])
    try:
        table = decode_table(changed, DIGEST)
    except DSecError:
        return
    assert table.file.chunk_digests == TABLE.file.chunk_digests
    for chunk in range(table.chunks):
        place = table.place(chunk)
        if place.encoding != ZEROS:
            assert place.offset + place.stored <= table.packs[place.pack].bytes <= PACK_BYTES
            assert place.stored <= table.length(chunk)


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_noise_is_an_error_of_ours(noise: bytes) -> None:
    with pytest.raises(IntegrityError):
        decode_table(noise, DIGEST)
    with pytest.raises(DSecError):
        decode_table(resealed(ENCODED[:24] + noise + bytes(32)), DIGEST)


@pytest.mark.parametrize("length", [0, 1, 127, 128, DIGESTS, PLACES, len(ENCODED) - 33, len(ENCODED) - 1])
def test_a_truncated_table(length: int) -> None:
    with pytest.raises(IntegrityError):
        decode_table(ENCODED[:length], DIGEST)


@pytest.mark.parametrize(
    ("at", "value", "what"),
    [
        (28, 0xFFFFFFFF, "chunks for"),
        (32, 0xFFFFFFFF, "packs for"),
        (24, 3, "chunk size"),
        (24, 1 << 31, "chunk size"),
        (48, 0xFFFFFFFF, "chunks for"),
        (40, 0, "metadata"),
        (HEADER + 32, PACK_BYTES + 1, "a pack of"),
        (HEADER + 32, 0, "a pack of"),
        (PLACES, 2, "chunk 0 lies at"),
        (PLACES + 4, 0xFFFFFFFF, "chunk 0 lies at"),
        (PLACES + 8, 0, "chunk 0 lies at"),
        (PLACES + 8, CHUNK, "chunk 0 lies at"),
        (PLACES + 12, 9, "chunk 0 lies at"),
        (PLACES + 12, ZEROS, "chunk 0 lies nowhere"),
        (PLACES + 16, 1, "chunk 1 lies nowhere"),
    ],
)
def test_absurd_fields_are_named(at: int, value: int, what: str) -> None:
    width = "<Q" if HEADER <= at < DIGESTS or 40 <= at < 56 else "<I"
    changed = bytearray(ENCODED)
    struct.pack_into(width, changed, at, value)
    with pytest.raises(IntegrityError, match=what):
        decode_table(resealed(bytes(changed)), DIGEST)


def test_chunks_in_another_order_are_another_layer() -> None:
    first, second = ENCODED[DIGESTS : DIGESTS + 32], ENCODED[DIGESTS + 32 : DIGESTS + 64]
    with pytest.raises(IntegrityError, match="it is that of sha256:"):
        decode_table(resealed(ENCODED[:DIGESTS] + second + first + ENCODED[DIGESTS + 64 :]), DIGEST)


def test_the_table_of_another_layer() -> None:
    other = a_table([9, 8], 5)
    with pytest.raises(IntegrityError, match="it is that of"):
        decode_table(encode_table(other), DIGEST)


def test_another_generation_says_so() -> None:
    changed = bytearray(ENCODED)
    struct.pack_into("<I", changed, 16, 2)
    with pytest.raises(UnsupportedOperationError, match="use the DSec that published it"):
        decode_table(resealed(bytes(changed)), DIGEST)
    for number in (LAYER_GENERATION - 1, LAYER_GENERATION + 1):
        other = replace(TABLE, file=msgspec.structs.replace(TABLE.file, generation=number))
        with pytest.raises(UnsupportedOperationError, match=f"generation {number} in a table"):
            decode_table(encode_table(other), DIGEST)
