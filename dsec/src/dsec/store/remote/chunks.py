"""Chunks as they lie in packs: each compressed on its own, or as it is where that is no longer."""

from __future__ import annotations

import sys

from libdsec.protocol.errors import IntegrityError

from .table import RAW, ZSTD

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL = 3
"""Of chunks: a layer is published at the speed of the network."""
METADATA_LEVEL = 9

CHUNK_WINDOW_BITS = 24
METADATA_WINDOW_BITS = 27
"""The largest windows of frames, and so the memory that one may ask for: 16 and 128 MiB."""


def encode_chunk(chunk: bytes) -> tuple[int, bytes]:
    """How it lies, and its bytes there."""
    compressed = zstd.compress(chunk, LEVEL)
    return (ZSTD, compressed) if len(compressed) < len(chunk) else (RAW, chunk)


def decode_chunk(stored: memoryview, encoding: int, length: int) -> bytes:
    """A chunk of `length` bytes; no more than that is ever made.

    :raises IntegrityError: it is no chunk of that length.
    """
    return bytes(stored) if encoding == RAW else decompress(stored, length, CHUNK_WINDOW_BITS, "a chunk")


def compress_metadata(image: bytes) -> bytes:
    return zstd.compress(image, METADATA_LEVEL)


def decompress(stored: bytes | memoryview, length: int, window_bits: int, what: str) -> bytes:
    """One frame of exactly `length` bytes.

    :raises IntegrityError: it is something else.
    """
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: window_bits}
    decompressor = zstd.ZstdDecompressor(options=options)
    try:
        # one more than expected: only so does the decompressor come to the frame's end
        made = decompressor.decompress(stored, max_length=length + 1)
    except zstd.ZstdError as error:
        raise IntegrityError(f"cannot decompress {what} of the shared store: {error}") from None
    if len(made) != length or not decompressor.eof or decompressor.unused_data:
        raise IntegrityError(f"cannot decompress {what} of the shared store: it has not the {length} bytes expected")
    return made
