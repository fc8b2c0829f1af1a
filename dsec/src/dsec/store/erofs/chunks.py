"""Hash and write the chunks of a data file on a thread of its own, so that reading goes on meanwhile."""

from __future__ import annotations

import os
from queue import Queue
from threading import Thread
from types import TracebackType
from typing import Final

from dsec.store.digest import STORE_CHUNK_SIZE, chunk_digest
from dsec.store.erofs.holes import ZERO_CHUNK

MAX_QUEUED: Final = 16
"""Chunks that wait to be written: 4 MiB."""


class ChunkWriter:
    """Chunks may come in any order; each is hashed whole and written up to its last used byte.

    Use as a context manager: leaving it ends the thread, also after an error. An error of the thread (an `OSError`
    of the target file system) is raised by the next `submit` or by `finish`.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: Queue[tuple[int, bytearray, int, int] | None] = Queue(MAX_QUEUED)
        self._digests: dict[int, bytes] = {}
        self._zero_digest = chunk_digest(ZERO_CHUNK)
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="layer-chunks", daemon=True)

    def __enter__(self) -> ChunkWriter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def submit(self, index: int, chunk: bytearray, used: int, length: int = STORE_CHUNK_SIZE) -> None:
        """Take over `chunk` number `index`: hash its first `length` bytes and write the first `used`.

        What is between them is zeros and stays a hole of the file. The caller must not touch `chunk` again.
        """
        if self._error is not None:
            raise self._error
        self._queue.put((index, chunk, used, length))

    def submit_zeros(self, index: int) -> None:
        """A chunk of zeros: nothing to write."""
        self._digests[index] = self._zero_digest

    def finish(self) -> tuple[bytes, ...]:
        """Wait until all is written and return the chunks' raw digests in order."""
        self._end()
        if self._error is not None:
            raise self._error
        return tuple(self._digests[index] for index in range(len(self._digests)))

    def _end(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._error is not None:
                continue
            index, chunk, used, length = item
            try:
                self._write(index, memoryview(chunk)[:used])
                self._digests[index] = chunk_digest(memoryview(chunk)[:length])
            except BaseException as error:
                self._error = error

    def _write(self, index: int, data: memoryview) -> None:
        offset = index * STORE_CHUNK_SIZE
        while data:
            written = os.pwrite(self._fd, data, offset)
            data = data[written:]
            offset += written
