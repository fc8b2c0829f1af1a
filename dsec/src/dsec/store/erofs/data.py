"""Placing the contents of files in a data file.

A file of a store chunk or more begins on a chunk boundary, so that the same file in two layers gives the same chunks;
a hole found in it is left out, what follows moves up. Its last chunk stays open, and so do chunks begun for small
files: a small file goes whole into the oldest open chunk with room. Where none has any, it begins in the latest chunk
and goes over into the next, if else more than `MOST_EMPTY` of the latest might stay empty. At most `chunks.MAX_OPEN`
chunks are open; the fullest is closed to make way. Every file begins on a 4 KiB block.

Memory: the writer's buffers, 5.5 MiB whatever the input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dsec.store.digest import MAX_CHUNKS, STORE_CHUNK_SIZE
from dsec.store.erofs.chunks import MAX_OPEN, ChunkWriter
from dsec.store.erofs.format import BLOCK_BITS, BLOCK_SIZE, round_up
from dsec.store.erofs.holes import ZERO_CHUNK, data_parts, granule, outward
from dsec.store.sources.base import Content
from dsec.store.tree import MAX_FILE_BYTES, Run, invalid
from libdsec.protocol.errors import QuotaExceededError

PROGRESS_BYTES: Final = 1 << 20
"""Progress is told about this often."""

MOST_EMPTY: Final = STORE_CHUNK_SIZE // 8
"""Bytes of a chunk that are rather left empty than that a small file lies in two chunks."""

_BLOCKS_A_CHUNK: Final = STORE_CHUNK_SIZE // BLOCK_SIZE


class _OpenChunk:
    """A chunk being filled; what lies behind `fill` in its buffer means nothing."""

    __slots__ = ("buffer", "fill", "index", "view")

    def __init__(self, index: int, buffer: bytearray) -> None:
        self.index = index
        self.fill = 0
        self.buffer = buffer
        self.view = memoryview(buffer)

    def clear(self, start: int, end: int) -> None:
        if start < end:
            self.view[start:end] = ZERO_CHUNK[: end - start]


class _Runs:
    """Collects a file's runs, joining those that follow each other in the file and in the data file."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def add(self, file_block: int, data_block: int, blocks: int) -> None:
        if self.runs:
            first, placed, count = self.runs[-1]
            if first + count == file_block and placed + count == data_block:
                self.runs[-1] = (first, placed, count + blocks)
                return
        self.runs.append((file_block, data_block, blocks))


class DataFile:
    """A data file being filled, one file's content after the other."""

    def __init__(self, writer: ChunkWriter, progress: Callable[[int], None] | None = None) -> None:
        self._writer = writer
        self._progress = progress
        self._chunks = 0
        self._open: list[_OpenChunk] = []
        self._told = 0
        self.content_bytes = 0
        """Bytes of the files placed so far, holes included."""

    def place(self, path: bytes, content: Content) -> tuple[Run, ...]:
        """Read `content` to its end and say where its blocks are. `path` is for messages.

        Raises `InvalidArgumentError` for a file above `MAX_FILE_BYTES` and for content that ends early,
        `QuotaExceededError` when the layer becomes larger than a layer may be.
        """
        size = content.size
        if size <= 0:
            return ()
        if size > MAX_FILE_BYTES:
            raise invalid(path, f"file of {size} bytes, the most is {MAX_FILE_BYTES}")
        if size < STORE_CHUNK_SIZE:
            runs = self._place_small(path, content, size)
        elif granule(size) <= STORE_CHUNK_SIZE:
            runs = self._place_large(path, content, size, None)
        else:
            runs = self._place_huge(path, content, size)
        self.content_bytes += size
        self._tell(0)
        return runs

    def finish(self) -> int:
        """Hand over what is still open and return the data file's length in bytes: whole blocks, at least one."""
        latest = self._latest()
        if latest is not None and not latest.fill:
            self._open.remove(latest)
            self._give_back(latest)
        if not self._chunks:
            self._begin()
        size = self._chunks * STORE_CHUNK_SIZE
        for chunk in self._open:
            length = STORE_CHUNK_SIZE
            if chunk.index == self._chunks - 1:
                length = max(chunk.fill, BLOCK_SIZE)
                size -= STORE_CHUNK_SIZE - length
            self._writer.submit(chunk.index, chunk.buffer, chunk.fill, length)
        self._open.clear()
        return size

    def _place_small(self, path: bytes, content: Content, size: int) -> tuple[Run, ...]:
        room = (size + BLOCK_SIZE - 1) & -BLOCK_SIZE
        for chunk in self._open:
            if chunk.fill + room <= STORE_CHUNK_SIZE:
                break
        else:
            if (latest := self._latest()) is not None and STORE_CHUNK_SIZE - latest.fill > MOST_EMPTY:
                self._open.remove(latest)
                return self._place_large(path, content, size, latest)
            chunk = self._begin()
        start = chunk.fill
        end = start + room
        if content.extents is None:
            _fill(path, content, chunk.view[start : start + size])
            chunk.clear(start + size, end)
        else:
            chunk.clear(start, end)
            _fill_range(path, content, chunk.view[start:end], 0, 0, room)
        parts = data_parts(chunk.buffer, start, end, BLOCK_SIZE)
        block = chunk.index * _BLOCKS_A_CHUNK + (start >> BLOCK_BITS)
        if parts is None:
            chunk.fill = end
            runs: tuple[Run, ...] = ((0, block, room >> BLOCK_BITS),)
        else:
            found = _Runs()
            chunk.fill = _close_up(chunk, start, parts, 0, found)
            runs = tuple(found.runs)
        if chunk.fill == STORE_CHUNK_SIZE:
            self._open.remove(chunk)
            self._writer.submit(chunk.index, chunk.buffer, STORE_CHUNK_SIZE)
        return runs

    def _place_large(self, path: bytes, content: Content, size: int, chunk: _OpenChunk | None) -> tuple[Run, ...]:
        """From `chunk` on, which is the latest one, or else from a new one."""
        unit = granule(size)
        extents = content.extents
        spans = [(0, size)] if extents is None else outward(extents, unit, size)
        found = _Runs()
        next_extent = 0
        for span, stop in spans:
            position = span
            while position < stop:
                if chunk is None:
                    chunk = self._take()
                start = chunk.fill
                take = min(STORE_CHUNK_SIZE - start, stop - position)
                end = start + round_up(take, BLOCK_SIZE)
                if extents is None:
                    _fill(path, content, chunk.view[start : start + take])
                    chunk.clear(start + take, end)
                else:
                    chunk.clear(start, end)
                    next_extent = _fill_range(
                        path, content, chunk.view[start:end], next_extent, position, position + take
                    )
                parts = data_parts(chunk.buffer, start, end, unit)
                if parts is None:
                    parts = [(start, end)]
                chunk.fill = _close_up(chunk, start, parts, position >> BLOCK_BITS, found)
                position += take
                self._tell(position)
                if chunk.fill == STORE_CHUNK_SIZE:
                    self._writer.submit(chunk.index, chunk.buffer, STORE_CHUNK_SIZE)
                    chunk = None
        if chunk is not None:
            if chunk.fill:
                self._keep(chunk)
            else:
                self._give_back(chunk)
        return tuple(found.runs)

    def _place_huge(self, path: bytes, content: Content, size: int) -> tuple[Run, ...]:
        """A file whose granule is several chunks: a granule is a hole if all its chunks are zeros."""
        unit = granule(size)
        extents = content.extents
        spans = [(0, size)] if extents is None else outward(extents, unit, size)
        found = _Runs()
        next_extent = 0
        for span, stop in spans:
            for start in range(span, stop, unit):
                end = min(start + unit, stop)
                next_extent = self._place_granule(path, content, next_extent, start, end, found)
                self._tell(end)
        return tuple(found.runs)

    def _place_granule(
        self, path: bytes, content: Content, next_extent: int, start: int, end: int, found: _Runs
    ) -> int:
        zeros = 0
        first = self._chunks
        chunk: _OpenChunk | None = None
        for position in range(start, end, STORE_CHUNK_SIZE):
            take = min(STORE_CHUNK_SIZE, end - position)
            if chunk is None:
                chunk = _OpenChunk(0, self._writer.take())
            if content.extents is None:
                _fill(path, content, chunk.view[:take])
                chunk.clear(take, STORE_CHUNK_SIZE)
            else:
                chunk.clear(0, STORE_CHUNK_SIZE)
                next_extent = _fill_range(path, content, chunk.view, next_extent, position, position + take)
            if chunk.buffer == ZERO_CHUNK:
                zeros += 1
                continue
            self._add_zeros(zeros)
            zeros = 0
            chunk.index = self._chunks
            chunk.fill = round_up(take, BLOCK_SIZE)
            self._count()
            if chunk.fill == STORE_CHUNK_SIZE:
                self._writer.submit(chunk.index, chunk.buffer, STORE_CHUNK_SIZE)
            else:
                self._keep(chunk)
            chunk = None
        if chunk is not None:
            self._writer.give_back(chunk.buffer)
        if self._chunks > first:
            self._add_zeros(zeros)
            blocks = round_up(end - start, BLOCK_SIZE) >> BLOCK_BITS
            found.add(start >> BLOCK_BITS, first * _BLOCKS_A_CHUNK, blocks)
        return next_extent

    def _add_zeros(self, chunks: int) -> None:
        for _ in range(chunks):
            self._writer.submit_zeros(self._chunks)
            self._count()

    def _take(self) -> _OpenChunk:
        chunk = _OpenChunk(self._chunks, self._writer.take())
        self._count()
        return chunk

    def _count(self) -> None:
        """One chunk more."""
        self._chunks += 1
        if self._chunks > MAX_CHUNKS:
            raise QuotaExceededError(
                f"cannot build layer: it has more than {MAX_CHUNKS * STORE_CHUNK_SIZE >> 30} GiB of data, the zeros "
                "between the parts of its sparse files included",
                limit=MAX_CHUNKS,
            )

    def _give_back(self, chunk: _OpenChunk) -> None:
        """Take back the latest chunk, in which nothing came to lie."""
        self._chunks -= 1
        self._writer.give_back(chunk.buffer)

    def _latest(self) -> _OpenChunk | None:
        """The chunk that the next one follows, if it is open."""
        return self._open[-1] if self._open and self._open[-1].index == self._chunks - 1 else None

    def _begin(self) -> _OpenChunk:
        chunk = self._take()
        self._keep(chunk)
        return chunk

    def _keep(self, chunk: _OpenChunk) -> None:
        if len(self._open) == MAX_OPEN:
            fullest = max(self._open, key=lambda other: other.fill)
            self._open.remove(fullest)
            self._writer.submit(fullest.index, fullest.buffer, fullest.fill)
        self._open.append(chunk)

    def _tell(self, inside: int) -> None:
        if self._progress is not None and self.content_bytes + inside - self._told >= PROGRESS_BYTES:
            self._told = self.content_bytes + inside
            self._progress(self._told)


def _fill(path: bytes, content: Content, view: memoryview) -> None:
    """Fill `view` with the next bytes of `content`."""
    got = content.readinto(view)
    while got < len(view):
        more = content.readinto(view[got:])
        if not more:
            raise invalid(path, f"ends {len(view) - got} bytes or more before its size")
        got += more


def _fill_range(path: bytes, content: Content, view: memoryview, index: int, start: int, end: int) -> int:
    """Put the bytes `start` to `end` of the file into `view`, which holds zeros, reading only extents.

    `index` is the first extent that ends behind `start`; returns the one to go on with.
    """
    extents = content.extents
    assert extents is not None
    while index < len(extents):
        offset, length = extents[index]
        low = max(offset, start)
        high = min(offset + length, end)
        if low < high:
            _fill(path, content, view[low - start : high - start])
        if offset + length > end:
            break
        index += 1
    return index


def _close_up(chunk: _OpenChunk, start: int, parts: list[tuple[int, int]], file_block: int, found: _Runs) -> int:
    """Move the data parts behind `start` together, note their runs and return the new fill."""
    fill = start
    base = chunk.index * _BLOCKS_A_CHUNK
    for low, high in parts:
        if low != fill:
            chunk.view[fill : fill + high - low] = chunk.view[low:high]
        found.add(file_block + ((low - start) >> BLOCK_BITS), base + (fill >> BLOCK_BITS), (high - low) >> BLOCK_BITS)
        fill += high - low
    return fill
