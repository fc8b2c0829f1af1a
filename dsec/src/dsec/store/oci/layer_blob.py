"""A layer as a blob of a container image: a tar with whiteouts, compressed with gzip.

The same layer gives the same bytes wherever the same zlib is: no time and no name stands in them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import BinaryIO, Final

from dsec.store.history import Blob
from dsec.store.records import LayerRecord
from dsec.store.sinks.tar import write_tar
from dsec.store.sources.layer import LayerSource

LEVEL: Final = 4
_GZIP: Final = zlib.MAX_WBITS | 16
_GATHERED: Final = 256 * 1024


def pack_layer(layer: LayerRecord, path: str, told: Callable[[int], None]) -> Blob:
    """Write the blob to `path`, a new file. `told` is given the bytes of the tar so far, every 256 KiB, and may raise.

    :raises InvalidArgumentError: a name in the layer would read as a whiteout.
    :raises IntegrityError: the layer is damaged.
    """
    with open(path, "xb", buffering=0) as file:
        blob = _BlobFile(file, told)
        write_tar(LayerSource(layer, lambda: told(0)), blob.write, whiteouts="oci")
        return blob.finish()


class _BlobFile:
    def __init__(self, file: BinaryIO, told: Callable[[int], None]) -> None:
        self._file = file
        self._told = told
        self._compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP)
        self._plain = hashlib.sha256()
        self._packed = hashlib.sha256()
        self._gathered = bytearray()
        self._done = 0
        self._size = 0

    def write(self, piece: bytes | memoryview) -> None:
        self._gathered += piece
        if len(self._gathered) >= _GATHERED:
            self._pass_on()

    def finish(self) -> Blob:
        self._pass_on()
        self._store(self._compressor.flush())
        return Blob(_named(self._packed.digest()), self._size, _named(self._plain.digest()))

    def _pass_on(self) -> None:
        gathered, self._gathered = self._gathered, bytearray()
        self._plain.update(gathered)
        self._store(self._compressor.compress(gathered))
        self._done += len(gathered)
        self._told(self._done)

    def _store(self, packed: bytes) -> None:
        self._packed.update(packed)
        self._size += len(packed)
        view = memoryview(packed)
        while view:
            view = view[self._file.write(view) :]


def _named(digest: bytes) -> str:
    return f"sha256:{digest.hex()}"
