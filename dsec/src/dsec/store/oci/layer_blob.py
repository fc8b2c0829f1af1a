"""A layer as a blob of a container image: a tar with whiteouts, compressed with gzip.

The tar is compressed in blocks that know nothing of each other, several at a time, and that are one stream together.
The same layer gives the same bytes wherever the same zlib is: no time, no name, no number of processors has a part.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, Final

from dsec.store.history import Blob
from dsec.store.records import LayerRecord
from dsec.store.sinks.tar import write_tar
from dsec.store.sources.layer import LayerSource

LEVEL: Final = 4
BLOCK_BYTES: Final = 1024 * 1024
MAX_THREADS: Final = 4
_HEADER: Final = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
"""Deflate; no flags, no time, of an unknown system."""


def pack_layer(layer: LayerRecord, path: str, told: Callable[[int], None]) -> Blob:
    """Write the blob to `path`, a new file. `told` is given the bytes of the tar so far, about each MiB, and may raise.

    Memory: 2 MiB for each block under way, of which there are `2 * MAX_THREADS` at most.
    :raises InvalidArgumentError: a name in the layer would read as a whiteout.
    :raises IntegrityError: the layer is damaged.
    """
    # half of the processors: the others are the sandboxes'
    threads = min(MAX_THREADS, max(1, len(os.sched_getaffinity(0)) // 2))
    with open(path, "xb", buffering=0) as file, ThreadPoolExecutor(threads, "dsec-gzip") as executor:
        blob = _BlobFile(file, executor, 2 * threads, told)
        write_tar(LayerSource(layer, lambda: told(0)), blob.write, whiteouts="oci")
        return blob.finish()


class _BlobFile:
    def __init__(self, file: BinaryIO, executor: ThreadPoolExecutor, at_once: int, told: Callable[[int], None]) -> None:
        self._file = file
        self._executor = executor
        self._at_once = at_once
        self._told = told
        self._plain = hashlib.sha256()
        self._packed = hashlib.sha256()
        self._crc = 0
        self._gathered = bytearray()
        self._blocks: deque[Future[bytes]] = deque()
        self._done = 0
        self._size = 0
        self._store(_HEADER)

    def write(self, piece: bytes | memoryview) -> None:
        self._gathered += piece
        while len(self._gathered) >= BLOCK_BYTES:
            block, self._gathered = self._gathered[:BLOCK_BYTES], self._gathered[BLOCK_BYTES:]
            self._pass_on(block, last=False)

    def finish(self) -> Blob:
        self._pass_on(self._gathered, last=True)
        while self._blocks:
            self._store(self._blocks.popleft().result())
        self._store(self._crc.to_bytes(4, "little") + (self._done & 0xFFFFFFFF).to_bytes(4, "little"))
        return Blob(_named(self._packed.digest()), self._size, _named(self._plain.digest()))

    def _pass_on(self, block: bytearray, *, last: bool) -> None:
        self._plain.update(block)
        self._crc = zlib.crc32(block, self._crc)
        self._blocks.append(self._executor.submit(_deflated, block, last))
        if len(self._blocks) > self._at_once:
            self._store(self._blocks.popleft().result())
        self._done += len(block)
        self._told(self._done)

    def _store(self, packed: bytes) -> None:
        self._packed.update(packed)
        self._size += len(packed)
        view = memoryview(packed)
        while view:
            view = view[self._file.write(view) :]


def _deflated(block: bytearray, last: bool) -> bytes:
    """A part of a deflate stream that refers to nothing before it and ends on a whole byte."""
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(block) + compressor.flush(zlib.Z_FINISH if last else zlib.Z_FULL_FLUSH)


def _named(digest: bytes) -> str:
    return f"sha256:{digest.hex()}"
