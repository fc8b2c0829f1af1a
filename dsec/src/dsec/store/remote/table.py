"""A layer's table in the store: its facts, its chunks' digests, where each chunk lies. Little-endian.

    header      128 bytes, `_HEADER`
    packs        40 bytes each: SHA-256 of the object (its name), its length
    digests      32 bytes a chunk, in the order of the data file
    places       16 bytes a chunk, in the same order: pack, offset in it, stored length, encoding
    checksum     32 bytes: SHA-256 of everything before it

What the digests are is said by the layer's name, which is their digest; places are only where to look, and what is
found there is held against the digests.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import NamedTuple

from dsec.store.digest import DIGEST_SIZE, LAYER_GENERATION, MAX_CHUNKS, chunk_digest, layer_digest
from dsec.store.records import RECORD_SCHEMA, LayerFile
from libdsec.protocol.errors import IntegrityError, UnsupportedOperationError

TABLE_GENERATION = 1

ZEROS, RAW, ZSTD = 0, 1, 2
"""How a chunk lies: nowhere, as it is, as one Zstandard frame."""

PACK_BYTES = 64 * 1024 * 1024
"""A pack is closed before it would grow beyond."""
"""Of a layer: 256 GiB of data."""
MAX_METADATA_BYTES = 512 * 1024 * 1024
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 4096, 1 << 24

_MAGIC = b"dsec layer table"
_HEADER = struct.Struct("<16sIIIIIIQQQ32s32x")
_PACK = struct.Struct("<32sQ")
_PLACE = struct.Struct("<IIII")

MAX_TABLE_BYTES = _HEADER.size + MAX_CHUNKS * (_PACK.size + DIGEST_SIZE + _PLACE.size) + DIGEST_SIZE


class Place(NamedTuple):
    """Where a chunk lies; all 0 where it is all zeros."""

    pack: int
    offset: int
    stored: int
    encoding: int


class Pack(NamedTuple):
    digest: bytes
    bytes: int

    @property
    def path(self) -> str:
        return f"packs/{self.digest[:1].hex()}/{self.digest.hex()}"


@dataclass(frozen=True)
class LayerTable:
    file: LayerFile
    """The facts, as layer.json has them."""
    packs: tuple[Pack, ...]
    places: bytes
    """Joined."""

    @property
    def chunks(self) -> int:
        return len(self.places) // _PLACE.size

    def place(self, chunk: int) -> Place:
        return Place._make(_PLACE.unpack_from(self.places, chunk * _PLACE.size))

    def digest(self, chunk: int) -> bytes:
        return self.file.chunk_digests[chunk * DIGEST_SIZE : (chunk + 1) * DIGEST_SIZE]

    def length(self, chunk: int) -> int:
        """Bytes of a chunk in the data file; the last one may be short."""
        size = self.file.chunk_size
        return min(size, self.file.data_bytes - chunk * size)


def join_places(places: list[Place]) -> bytes:
    return b"".join(_PLACE.pack(*place) for place in places)


def encode_table(table: LayerTable) -> bytes:
    file = table.file
    header = _HEADER.pack(
        _MAGIC,
        TABLE_GENERATION,
        file.generation,
        file.chunk_size,
        table.chunks,
        len(table.packs),
        0,
        file.metadata_bytes,
        file.data_bytes,
        file.files,
        file.metadata_digest,
    )
    body = b"".join([header, *(_PACK.pack(*pack) for pack in table.packs), file.chunk_digests, table.places])
    return body + hashlib.sha256(body).digest()


def decode_table(content: bytes, digest: str) -> LayerTable:
    """The table of the layer `digest`, every field checked, so that nothing in it leads outside of anything.

    :raises IntegrityError: it is damaged, or that of another layer.
    :raises UnsupportedOperationError: of another generation.
    """
    try:
        return _decode(content, digest)
    except (struct.error, _DamagedError) as error:
        raise IntegrityError(
            f"cannot use layer {digest} of the shared store: its table is damaged: {error}; publish the layer again",
            digest=digest,
        ) from None


class _DamagedError(Exception):
    pass


def _decode(content: bytes, digest: str) -> LayerTable:
    (magic, generation, layer_generation, chunk_size, chunks, packs, _, metadata, data, files, metadata_digest) = (
        _HEADER.unpack_from(content)
    )
    _require(magic == _MAGIC, "it does not begin like one")
    if generation != TABLE_GENERATION or layer_generation != LAYER_GENERATION:
        raise UnsupportedOperationError(
            f"cannot use layer {digest} of the shared store: it is of generation {layer_generation} in a table of "
            f"generation {generation}, this DSec knows {LAYER_GENERATION} and {TABLE_GENERATION}; use the DSec that "
            "published it, or make and publish the image again",
            digest=digest,
        )
    _require(MIN_CHUNK_BYTES <= chunk_size <= MAX_CHUNK_BYTES and not chunk_size & (chunk_size - 1), "chunk size")
    _require(chunks <= MAX_CHUNKS and chunks == -(-data // chunk_size), f"{chunks} chunks for {data} bytes")
    _require(packs <= chunks, f"{packs} packs for {chunks} chunks")
    _require(0 < metadata <= MAX_METADATA_BYTES, "metadata's length")
    digests_at = _HEADER.size + packs * _PACK.size
    places_at = digests_at + chunks * DIGEST_SIZE
    end = places_at + chunks * _PLACE.size
    _require(len(content) == end + DIGEST_SIZE, f"{len(content)} bytes instead of {end + DIGEST_SIZE}")
    _require(hashlib.sha256(content[:end]).digest() == content[end:], "its checksum does not match")
    digests = content[digests_at:places_at]
    pieces = [digests[at : at + DIGEST_SIZE] for at in range(0, len(digests), DIGEST_SIZE)]
    named = layer_digest(metadata_digest, pieces, generation=layer_generation, chunk_size=chunk_size)
    _require(named == digest, f"it is that of {named}")
    table = LayerTable(
        LayerFile(RECORD_SCHEMA, layer_generation, digest, metadata_digest, metadata, data, chunk_size, digests, files),
        tuple(Pack._make(fields) for fields in _PACK.iter_unpack(content[_HEADER.size : digests_at])),
        content[places_at:end],
    )
    _check_places(table)
    return table


def _check_places(table: LayerTable) -> None:
    for pack in table.packs:
        _require(0 < pack.bytes <= PACK_BYTES, f"a pack of {pack.bytes} bytes")
    size, chunks, packs = table.file.chunk_size, table.chunks, table.packs
    zeros = {length: chunk_digest(bytes(length)) for length in {size, table.length(chunks - 1)} if chunks}
    for chunk, place in enumerate(map(Place._make, _PLACE.iter_unpack(table.places))):
        length = size if chunk < chunks - 1 else table.length(chunk)
        if place.encoding == ZEROS:
            _require(place == (0, 0, 0, 0) and table.digest(chunk) == zeros[length], f"chunk {chunk} lies nowhere")
            continue
        stored = place.stored == length if place.encoding == RAW else 0 < place.stored < length
        known = place.encoding in (RAW, ZSTD) and place.pack < len(packs)
        _require(
            stored and known and place.offset + place.stored <= packs[place.pack].bytes,
            f"chunk {chunk} lies at {tuple(place)}",
        )


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise _DamagedError(what)
