"""The data file of one layer, while it is being filled and when it is whole.

Beside `data.erofs` (as long as it will be, holes where nothing came yet) lies `present.map`, or `present.whole` once
all of it is there and on the disk. What neither of them vouches for is not there, whatever the data file holds: so a
data file is taken away only after them, and made anew before them.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass

from dsec import faults
from dsec.store.digest import DIGEST_SIZE, chunk_digest, layer_digest
from dsec.store.durable import sync_directory
from dsec.store.records import LayerRecord, is_remote
from dsec.store.verify import read_layer_file
from libdsec.protocol.errors import CapacityError, IntegrityError

from .present import PresentMap, marked_bytes

MAP_NAME = "present.map"
WHOLE_NAME = "present.whole"
_PARTIAL_NAME = "present.data"


def is_whole(layer: LayerRecord) -> bool:
    """Whether all of its data is here: it lies in no shared store, or all of it came."""
    return not is_remote(layer) or (
        os.path.exists(os.path.join(layer.directory, WHOLE_NAME)) and os.path.exists(layer.data)
    )


def present_bytes(layer: LayerRecord) -> int:
    """How much of its data is here, of a layer that is not open."""
    if is_whole(layer):
        return layer.data_bytes
    try:
        inode = os.stat(layer.data).st_ino
    except FileNotFoundError:
        return 0
    return min(marked_bytes(os.path.join(layer.directory, MAP_NAME), inode), layer.data_bytes)


def mark_whole(layer: LayerRecord) -> None:
    """Vouch for a data file that is whole, checked and on the disk."""
    descriptor = os.open(os.path.join(layer.directory, WHOLE_NAME), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.close(descriptor)
    sync_directory(layer.directory)


def evict(layer: LayerRecord, grave: str) -> int:
    """Take the data away; `grave` is a path on the same file system that does not exist. How many bytes of the disk
    that gave. The caller sees to it that nobody has it mounted or is filling it.

    A crash leaves a data file that nothing vouches for, or one that has another name.
    """
    for name in (WHOLE_NAME, MAP_NAME):
        _remove(os.path.join(layer.directory, name))
    # on the disk before the data goes: after a loss of power, too, nothing may vouch for what is not there
    sync_directory(layer.directory)
    faults.point("loading.evict.disowned")
    try:
        os.rename(layer.data, grave)
    except FileNotFoundError:
        return 0
    faults.point("loading.evict.renamed")
    freed = os.stat(grave).st_blocks * 512
    os.unlink(grave)
    return freed


@dataclass(frozen=True, slots=True)
class Chunks:
    """What layer.json says of the data, checked against the layer's name."""

    size: int
    total_bytes: int
    digests: bytes

    @classmethod
    def of(cls, layer: LayerRecord) -> Chunks:
        """:raises IntegrityError: layer.json is damaged, or another layer's."""
        record = read_layer_file(layer)
        joined = record.chunk_digests
        pieces = [joined[at : at + DIGEST_SIZE] for at in range(0, len(joined), DIGEST_SIZE)]
        named = len(joined) % DIGEST_SIZE == 0 and record.chunk_size > 0
        if not named or layer_digest(record.metadata_digest, pieces, chunk_size=record.chunk_size) != layer.digest:
            raise IntegrityError(f"cannot load layer {layer.digest}: its layer.json does not give its digest")
        if -(-layer.data_bytes // record.chunk_size) != len(pieces):
            raise IntegrityError(
                f"cannot load layer {layer.digest}: {len(pieces)} chunk digests for {layer.data_bytes} bytes"
            )
        return cls(record.chunk_size, layer.data_bytes, joined)

    @property
    def count(self) -> int:
        return len(self.digests) // DIGEST_SIZE

    def of_range(self, offset: int, count: int) -> tuple[int, int]:
        """(first, end) of the chunks that a range of bytes lies in."""
        return min(offset // self.size, self.count), min(-(-(offset + count) // self.size), self.count)

    def length(self, chunk: int) -> int:
        return min(self.size, self.total_bytes - chunk * self.size)

    def matches(self, chunk: int, data: bytes) -> bool:
        wanted = self.digests[chunk * DIGEST_SIZE : (chunk + 1) * DIGEST_SIZE]
        return len(data) == self.length(chunk) and chunk_digest(data) == wanted


class DataCache:
    """A data file that is being filled. `put` is safe from several threads, of different chunks."""

    def __init__(self, layer: LayerRecord, chunks: Chunks, present: PresentMap) -> None:
        self.layer, self.chunks, self.present = layer, chunks, present
        self.writer = -1
        """Reads and writes through it raise no events."""
        self._idle = threading.Condition()
        self._writing = 0
        self._closed = False

    @classmethod
    def open(cls, layer: LayerRecord) -> DataCache:
        """As it was left, or new. Opens nothing that would raise an event: `writer` is the caller's to give.

        :raises IntegrityError: layer.json is damaged.
        :raises CapacityError: no room on the disk.
        """
        chunks = Chunks.of(layer)
        try:
            return cls(layer, chunks, _open_map(layer, chunks) or _make_anew(layer, chunks))
        except OSError as error:
            raise CapacityError(
                f"cannot make {layer.data} for layer {layer.digest}: {error.strerror}", digest=layer.digest
            ) from error

    def is_current(self) -> bool:
        """Whether the layer still has this data file: it may have been removed, and have come again."""
        try:
            return os.path.samestat(os.stat(self.layer.data), os.fstat(self.writer))
        except FileNotFoundError:
            return False

    def check_after_boot(self) -> int:
        """Hold what came before this boot against its digests; how many chunks were not what the map says."""
        if self.present.trusted:
            return 0
        wrong = self.check()
        self.present.trust()
        return len(wrong)

    def check(self) -> list[int]:
        """Hold what is there against its digests. Chunks that are wrong are there no more; which these were."""
        wrong = []
        for chunk in range(self.chunks.count):
            if self.present.has(chunk) and not self.chunks.matches(chunk, self.read(chunk)):
                self.present.clear(chunk)
                wrong.append(chunk)
        return wrong

    def read(self, chunk: int) -> bytes:
        return os.pread(self.writer, self.chunks.length(chunk), chunk * self.chunks.size)

    def put(self, chunk: int, data: bytes) -> None:
        """Check a chunk, write it, and only then say that it is there.

        :raises IntegrityError: it is not what the layer's digest names.
        :raises OSError: it cannot be written; it is not there.
        """
        if not self.chunks.matches(chunk, data):
            raise IntegrityError(
                f"cannot use chunk {chunk} of layer {self.layer.digest}: the store gave {len(data)} bytes that do not "
                "match its digest",
                digest=self.layer.digest,
                chunk=chunk,
            )
        faults.point("loading.chunk.checked")
        with self._idle:
            if self._closed:
                raise OSError(errno.EBADF, "the layer is closed")
            self._writing += 1
        try:
            self._write(chunk, data)
        finally:
            with self._idle:
                self._writing -= 1
                self._idle.notify_all()

    def _write(self, chunk: int, data: bytes) -> None:
        view, at = memoryview(data), chunk * self.chunks.size
        while view:
            written = os.pwrite(self.writer, view, at)
            view, at = view[written:], at + written
        faults.point("loading.chunk.written")
        self.present.mark(chunk)
        faults.point("loading.chunk.marked")

    @property
    def complete(self) -> bool:
        return self.present.count == self.chunks.count

    @property
    def present_bytes(self) -> int:
        return min(self.present.count * self.chunks.size, self.chunks.total_bytes)

    def finish(self) -> None:
        """All is there: put it on the disk and say so for good. May be repeated."""
        os.fdatasync(self.writer)
        faults.point("loading.whole.synced")
        mark_whole(self.layer)
        faults.point("loading.whole.marked")
        _remove(os.path.join(self.layer.directory, MAP_NAME))

    def close(self) -> None:
        """Waits for what is being written: a number that was closed may be another file's by then."""
        with self._idle:
            self._closed = True
            self._idle.wait_for(lambda: not self._writing)
        self.present.close()
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1


def _open_map(layer: LayerRecord, chunks: Chunks) -> PresentMap | None:
    try:
        status = os.stat(layer.data)
    except FileNotFoundError:
        return None
    if status.st_size != layer.data_bytes:
        return None
    path = os.path.join(layer.directory, MAP_NAME)
    return PresentMap.open(path, chunks=chunks.count, chunk_size=chunks.size, inode=status.st_ino)


def _make_anew(layer: LayerRecord, chunks: Chunks) -> PresentMap:
    """What is there is vouched for by nothing."""
    for name in (MAP_NAME, WHOLE_NAME):
        _remove(os.path.join(layer.directory, name))
    partial = os.path.join(layer.directory, _PARTIAL_NAME)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, layer.data_bytes)
        inode = os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)
    faults.point("loading.data.made")
    os.rename(partial, layer.data)
    faults.point("loading.data.named")
    path = os.path.join(layer.directory, MAP_NAME)
    return PresentMap.create(path, chunks=chunks.count, chunk_size=chunks.size, inode=inode)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
