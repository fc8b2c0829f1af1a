"""Hash and write the chunks of a data file on a thread of its own, so that reading goes on meanwhile.

Buffers are taken from the writer, filled, and given back by submitting them; there are `MAX_BUFFERS` of them, which
bounds both the memory of a build and how far reading may run ahead of writing. A buffer keeps what its last user left
in it: new memory for each chunk costs more (page faults) than clearing the few bytes that matter.
"""

from __future__ import annotations

import os
from queue import Empty, SimpleQueue
from threading import Event, Thread
from types import TracebackType
from typing import Final

from dsec.linux.syscalls import start_writing
from dsec.store.digest import STORE_CHUNK_SIZE, chunk_digest
from dsec.store.erofs.holes import ZERO_CHUNK

MAX_OPEN: Final = 16
"""Buffers that the filling side may hold at a time, besides the one it fills."""
MAX_BUFFERS: Final = MAX_OPEN + 18
"""8.5 MiB in all; what is not held waits to be written."""


class ChunkWriter:
    """Chunks may come in any order; each is hashed whole and written up to its last used byte.

    Use as a context manager: leaving it ends the thread, also after an error. An error of the thread (an `OSError`
    of the target file system) is raised by the next `submit`, by `finish` or by `sync`.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._work: SimpleQueue[tuple[int, bytearray, int, int] | int | None] = SimpleQueue()
        self._free: SimpleQueue[bytearray] = SimpleQueue()
        self._buffers = 0
        self._digests: dict[int, bytes] = {}
        self._zero_digest = chunk_digest(ZERO_CHUNK)
        self._written = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="layer-chunks", daemon=True)

    def __enter__(self) -> ChunkWriter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.put(None)
        self._thread.join()

    def take(self) -> bytearray:
        """A buffer of one chunk, with anything in it. Waits for the thread when all are under way."""
        try:
            return self._free.get_nowait()
        except Empty:
            if self._buffers == MAX_BUFFERS:
                return self._free.get()
            self._buffers += 1
            return bytearray(STORE_CHUNK_SIZE)

    def give_back(self, buffer: bytearray) -> None:
        """Return a buffer unused."""
        self._free.put(buffer)

    def submit(self, index: int, buffer: bytearray, used: int, length: int = STORE_CHUNK_SIZE) -> None:
        """Hand over chunk number `index`: the first `used` bytes of `buffer` and zeros up to `length`.

        The zeros are hashed but not written, they stay a hole of the file. The caller must not touch `buffer` again.
        """
        if self._error is not None:
            raise self._error
        self._work.put((index, buffer, used, length))

    def submit_zeros(self, index: int) -> None:
        """A chunk of zeros: nothing to write."""
        self._digests[index] = self._zero_digest

    def finish(self, size: int) -> tuple[bytes, ...]:
        """Wait until all is written, set the file's length and return the chunks' raw digests in order.

        The thread then makes the file durable; `sync` waits for that.
        """
        self._work.put(size)
        self._written.wait()
        if self._error is not None:
            raise self._error
        return tuple(self._digests[index] for index in range(len(self._digests)))

    def sync(self) -> None:
        """Wait until the finished file is durable."""
        self._work.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            try:
                if isinstance(item, int):
                    if self._error is None:
                        os.ftruncate(self._fd, item)
                        self._written.set()
                        os.fsync(self._fd)
                elif self._error is None:
                    self._store(*item)
            except BaseException as error:
                self._error = error
            if isinstance(item, int):
                self._written.set()
            else:
                self._free.put(item[1])

    def _store(self, index: int, buffer: bytearray, used: int, length: int) -> None:
        content = memoryview(buffer)[:used]
        self._write(index, content)
        self._digests[index] = chunk_digest(content, length - used)

    def _write(self, index: int, content: memoryview) -> None:
        start = offset = index * STORE_CHUNK_SIZE
        while content:
            written = os.pwrite(self._fd, content, offset)
            content = content[written:]
            offset += written
        # so that less is left when it is made durable
        start_writing(self._fd, start, offset - start)
