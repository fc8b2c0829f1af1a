"""Contents of layers read back from their data files, each chunk checked against its digest.

The data files of a stack count as one: they follow each other, each from a chunk boundary on, and a block's number
goes on from file to file (`StackData.starts`). What is read in the order of blocks is read from the disk once; for any
other order the last few chunks are kept.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence

from libdsec.protocol.errors import ConflictError, IntegrityError

from .digest import DIGEST_SIZE, STORE_CHUNK_SIZE, chunk_digest
from .erofs.chunks import MAX_OPEN
from .erofs.format import BLOCK_SIZE, round_up
from .loading.cache import is_whole
from .records import LayerFile, LayerRecord
from .sources.base import Extent
from .tree import Node
from .verify import read_layer_file

_KEPT_CHUNKS = MAX_OPEN + 1
"""Small files lie in as many chunks at a time as a build had open."""


Whole = Callable[[LayerRecord], None]
"""Called with a layer before its data is read, and returns when all of it is on this node."""


def require_whole(layer: LayerRecord) -> None:
    """:raises ConflictError: some of its data is still in the shared store alone."""
    if not is_whole(layer):
        raise ConflictError(
            f"cannot read layer {layer.digest}: not all of its data is on this node; fetch the image first, with "
            "`dsec image fetch`",
            digest=layer.digest,
        )


class StackData:
    """The data files of `layers`, lowest first. One of them is open at a time. Not for several threads at once."""

    def __init__(self, layers: Sequence[LayerRecord], whole: Whole = require_whole) -> None:
        self._layers = tuple(layers)
        self._whole = whole
        self.starts: list[int] = []
        """The first block of each layer's file."""
        end = 0
        for layer in self._layers:
            self.starts.append(end)
            end += round_up(layer.data_bytes, STORE_CHUNK_SIZE) // BLOCK_SIZE
        self.blocks = end
        self._open = -1
        self._file = -1
        self._record: LayerFile | None = None
        self._chunks: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def close(self) -> None:
        """Again is fine."""
        if self._file >= 0:
            os.close(self._file)
        self._open = self._file = -1
        self._chunks.clear()

    def layer_at(self, block: int) -> int:
        """Which layer's file has that block."""
        return bisect_right(self.starts, block) - 1

    def record(self, index: int) -> LayerFile:
        """layer.json of a layer.

        Raises what `whole` raises.
        :raises IntegrityError: it is missing or damaged.
        """
        if self._open != index or self._record is None:
            self._switch(index)
        assert self._record is not None
        return self._record

    def read_into(self, view: memoryview, position: int) -> int:
        """Fill the front of `view` from the byte at `position`; at most up to the end of that chunk.

        :raises IntegrityError: the chunk is not what its digest says.
        """
        index = self.layer_at(position // BLOCK_SIZE)
        record = self.record(index)
        number, start = divmod(position - self.starts[index] * BLOCK_SIZE, record.chunk_size)
        chunk = self.chunk(index, number)
        piece = chunk[start : start + len(view)]
        if not piece:
            raise _broken(self._layers[index], f"byte {position} lies behind its end")
        view[: len(piece)] = piece
        return len(piece)

    def chunk(self, index: int, number: int) -> bytes:
        """A chunk of a layer's file. A number behind its end gives nothing.

        :raises IntegrityError: it is not what its digest says.
        """
        known = self._chunks.get((index, number))
        if known is not None:
            self._chunks.move_to_end((index, number))
            return known
        record = self.record(index)
        layer = self._layers[index]
        if number * record.chunk_size >= layer.data_bytes:
            return b""
        length = min(record.chunk_size, layer.data_bytes - number * record.chunk_size)
        chunk = b""
        while len(chunk) < length:
            more = os.pread(self._file, length - len(chunk), number * record.chunk_size + len(chunk))
            if not more:
                break
            chunk += more
        wanted = record.chunk_digests[number * DIGEST_SIZE : (number + 1) * DIGEST_SIZE]
        if chunk_digest(chunk) != wanted:
            raise _broken(layer, f"chunk {number} of {layer.data} does not match", number)
        self._chunks[index, number] = chunk
        if len(self._chunks) > _KEPT_CHUNKS:
            self._chunks.popitem(last=False)
        return chunk

    def _switch(self, index: int) -> None:
        layer = self._layers[index]
        self._whole(layer)
        record = read_layer_file(layer)
        if record.chunk_size <= 0 or -(-layer.data_bytes // record.chunk_size) * DIGEST_SIZE != len(
            record.chunk_digests
        ):
            raise _broken(layer, "layer.json does not cover its data")
        try:
            opened = os.open(layer.data, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _broken(layer, f"cannot read {layer.data}: {error.strerror}") from error
        if self._file >= 0:
            os.close(self._file)
        self._open, self._file, self._record = index, opened, record


class PlacedContent:
    """A regular file's content by its runs (see `sources.base.Content`)."""

    __slots__ = ("_at", "_data", "_index", "_runs", "extents", "size")

    def __init__(self, data: StackData, node: Node) -> None:
        self._data = data
        self._runs = node.runs
        self._index = 0
        self._at = 0
        self.size = node.size
        self.extents: list[Extent] | None = [
            (first * BLOCK_SIZE, min(count * BLOCK_SIZE, node.size - first * BLOCK_SIZE))
            for first, _, count in node.runs
        ]
        if sum(length for _, length in self.extents) == node.size:
            self.extents = None

    def readinto(self, view: memoryview) -> int:
        if self._index == len(self._runs):
            return 0
        first, block, count = self._runs[self._index]
        length = min(count * BLOCK_SIZE, self.size - first * BLOCK_SIZE)
        got = self._data.read_into(view[: length - self._at], block * BLOCK_SIZE + self._at)
        self._at += got
        if self._at == length:
            self._index += 1
            self._at = 0
        return got


def _broken(layer: LayerRecord, why: str, chunk: int | None = None) -> IntegrityError:
    details = {} if chunk is None else {"chunk": chunk}
    return IntegrityError(
        f"cannot read layer {layer.digest}: {why}; remove the images that have it and build them again",
        digest=layer.digest,
        **details,
    )
