"""Merging consecutive layers into one: a sandbox then mounts a few layers where its image was made in many steps.

The merged layer's tree is that of its layers together (`flatten`), its data the chunks of their data files that files
still have, one file after the other. A chunk goes over as it is, with the digest it had; only a file's last, short
chunk becomes a longer one and is digested anew. So merging costs a copy, which a file system that shares blocks does
not even make.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial

from libdsec.protocol.environment import BuildProgress
from libdsec.protocol.errors import IntegrityError

from . import disk_full
from .build import LayerBuild, finished
from .digest import DIGEST_SIZE, STORE_CHUNK_SIZE, chunk_digest
from .durable import write_durably
from .erofs.format import BLOCK_SIZE, round_up
from .erofs.metadata import build_metadata
from .flatten import Flattened, walk
from .layer_data import StackData
from .local import LocalStore, Taken
from .records import LayerRecord
from .tree import Run, Tree

Progress = Callable[[BuildProgress], None]

_BLOCKS_A_CHUNK = STORE_CHUNK_SIZE // BLOCK_SIZE
_PIECE = 4 * 1024 * 1024
_NO_COPY = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


def merge_layers(
    store: LocalStore,
    layers: Sequence[LayerRecord],
    bound: int,
    progress: Progress,
    taken: Taken,
    *,
    complete: bool = True,
) -> tuple[LayerRecord, ...]:
    """Join consecutive layers, from the lowest on, while they have at most `bound` bytes of data together. What comes
    back mounts to what `layers`, lowest first, mount to; layers that found no partner are themselves.

    New layers are `taken`'s until an image names them. `complete`: nothing will ever lie below the lowest layer, so
    what hides nothing is left out; else all that may hide something stays. Layers that were merged before may be
    merged further. `progress` is told at least once every 4 MiB; what it raises ends the merge.

    :raises ConflictError: a layer's data is not all on this node.
    :raises IntegrityError: a layer is damaged.
    :raises QuotaExceededError: layers that would become one have too many names together.
    :raises CapacityError: the disk is full; nothing is left of the layer that was being written.
    """
    merged: list[LayerRecord] = []
    done = 0
    below: tuple[LayerRecord, ...] | None = () if complete else None
    for run in _runs(layers, bound):
        if len(run) == 1:
            merged.append(run[0])
        else:
            with disk_full.typed("merge layers", store.state_dir), store.build_directory() as directory:
                told = partial(_tell, progress, done)
                with closing(_Merging(run, below, directory, partial(told, 0))) as merging:
                    merged.append(taken.take(merging.write(told), directory))
        done += sum(layer.data_bytes for layer in run)
        _tell(progress, done, 0)
        if below is not None:
            below = (*below, *run)
    return tuple(merged)


def _tell(progress: Progress, before: int, size: int) -> None:
    progress(BuildProgress("merge", before + size))


def _runs(layers: Sequence[LayerRecord], bound: int) -> Iterator[list[LayerRecord]]:
    run: list[LayerRecord] = []
    size = 0
    for layer in layers:
        if run and size + layer.data_bytes > bound:
            yield run
            run, size = [], 0
        run.append(layer)
        size += round_up(layer.data_bytes, STORE_CHUNK_SIZE)
    if run:
        yield run


class _Merging:
    """One merged layer being made."""

    def __init__(
        self,
        layers: Sequence[LayerRecord],
        below: Sequence[LayerRecord] | None,
        directory: str,
        tick: Callable[[], None],
    ) -> None:
        self._layers = layers
        self._directory = directory
        self._tree = Flattened(layers, hiding=True, below=below, tick=tick)
        self._data: StackData = self._tree.data

    def close(self) -> None:
        self._tree.close()

    def write(self, progress: Callable[[int], None]) -> LayerBuild:
        for index, layer in enumerate(self._layers):
            if (size := self._data.record(index).chunk_size) != STORE_CHUNK_SIZE:
                raise _broken(layer, f"its chunks have {size} bytes, not {STORE_CHUNK_SIZE}")
        kept = self._kept_chunks()
        data_path = os.path.join(self._directory, "merged.data")
        metadata_path = os.path.join(self._directory, "merged.erofs")
        data_fd = os.open(data_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            size, digests = _Chunks(self._layers, self._data, data_fd, progress).copy(kept)
            os.fsync(data_fd)
        finally:
            os.close(data_fd)
        files, content = self._move_runs(kept)
        tree = Tree()
        tree.root = self._tree.root
        image, inodes = build_metadata(tree, size // BLOCK_SIZE, b"".join(digests))
        write_durably(metadata_path, image)
        return finished(
            image,
            digests,
            metadata_path=metadata_path,
            data_path=data_path,
            data_size=size,
            inodes=inodes,
            files=files,
            content_bytes=content,
        )

    def _kept_chunks(self) -> list[int]:
        """The chunks that files still have, numbered through the stack, ascending."""
        kept: set[int] = set()
        for _, node in walk(self._tree.root):
            for _, block, count in node.runs:
                kept.update(range(block // _BLOCKS_A_CHUNK, (block + count - 1) // _BLOCKS_A_CHUNK + 1))
        return sorted(kept)

    def _move_runs(self, kept: Sequence[int]) -> tuple[int, int]:
        """Let every file's runs point into the new data file. Returns the number of files and their bytes."""
        places = {chunk: number for number, chunk in enumerate(kept)}

        def moved(run: Run) -> Run:
            first, block, count = run
            # chunks of one run followed each other, are all kept, and so follow each other still
            chunk, inside = divmod(block, _BLOCKS_A_CHUNK)
            return first, places[chunk] * _BLOCKS_A_CHUNK + inside, count

        files: dict[int, int] = {}
        for _, node in walk(self._tree.root):
            if stat.S_ISREG(node.mode) and id(node) not in files:
                files[id(node)] = node.size
                node.runs = tuple(moved(run) for run in node.runs)
        return len(files), sum(files.values())


class _Chunks:
    """Copies chunks of a stack's data files into a new one."""

    def __init__(
        self, layers: Sequence[LayerRecord], data: StackData, target: int, progress: Callable[[int], None]
    ) -> None:
        self._layers = layers
        self._data = data
        self._target = target
        self._progress = progress
        self._done = 0

    def copy(self, kept: Sequence[int]) -> tuple[int, tuple[bytes, ...]]:
        """The new file's size and its chunks' digests. A file without data is one block of zeros."""
        digests: list[bytes] = []
        size = 0
        last = b""
        for index, first, end in self._spans(kept):
            if size % STORE_CHUNK_SIZE:
                digests[-1] = chunk_digest(last, -size % STORE_CHUNK_SIZE)
            layer, record = self._layers[index], self._data.record(index)
            at = len(digests) * STORE_CHUNK_SIZE
            digests += (
                record.chunk_digests[number * DIGEST_SIZE : (number + 1) * DIGEST_SIZE] for number in range(first, end)
            )
            length = min(end * STORE_CHUNK_SIZE, layer.data_bytes) - first * STORE_CHUNK_SIZE
            self._copy(layer, first * STORE_CHUNK_SIZE, length, at)
            size = at + length
            if size % STORE_CHUNK_SIZE:
                last = self._data.chunk(index, end - 1)
        if not digests:
            size, digests = BLOCK_SIZE, [chunk_digest(b"", BLOCK_SIZE)]
        os.ftruncate(self._target, size)
        return size, tuple(digests)

    def _spans(self, kept: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Chunks that follow each other in one layer's file: (layer, first chunk of its file, the one behind)."""
        start = 0
        for position, chunk in enumerate(kept):
            index = self._data.layer_at(chunk * _BLOCKS_A_CHUNK)
            base = self._data.starts[index] // _BLOCKS_A_CHUNK
            if position + 1 < len(kept):
                following = kept[position + 1]
                if following == chunk + 1 and self._data.layer_at(following * _BLOCKS_A_CHUNK) == index:
                    continue
            yield index, kept[start] - base, chunk + 1 - base
            start = position + 1

    def _copy(self, layer: LayerRecord, offset: int, length: int, target: int) -> None:
        """Holes stay holes."""
        end = offset + length
        with open(layer.data, "rb", buffering=0) as file:
            source = file.fileno()
            position = offset
            while position < end:
                try:
                    start = os.lseek(source, position, os.SEEK_DATA)
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        raise
                    start = end
                self._tell(min(start, end) - position)
                if start >= end:
                    break
                position = min(os.lseek(source, start, os.SEEK_HOLE), end)
                self._copy_data(layer, source, start, position - start, target + start - offset)

    def _copy_data(self, layer: LayerRecord, source: int, offset: int, length: int, target: int) -> None:
        while length:
            piece = min(length, _PIECE)
            try:
                done = os.copy_file_range(source, self._target, piece, offset, target)
            except OSError as error:
                if error.errno not in _NO_COPY:
                    raise
                done = os.pwrite(self._target, os.pread(source, piece, offset), target)
            if not done:
                raise _broken(layer, f"{layer.data} ends at {offset}")
            offset += done
            target += done
            length -= done
            self._tell(done)

    def _tell(self, more: int) -> None:
        self._done += more
        self._progress(self._done)


def _broken(layer: LayerRecord, why: str) -> IntegrityError:
    return IntegrityError(
        f"cannot merge layer {layer.digest}: {why}; remove the images that have it and build them again",
        digest=layer.digest,
    )
