"""Hash and write the chunks of a data file in a second thread, so that reading goes on meanwhile.

Buffers are taken from the writer, filled, and given back by submitting them; there are `MAX_BUFFERS` of them, which
bounds both the memory of a build and how far reading may run ahead of writing. Whoever would have to wait, for a free
buffer or for the end, hashes and writes as well; a third thread for it would spend more on waiting for the
interpreter's lock than it gives.

A buffer keeps what its last user left in it, the build before this one too: new memory for each chunk costs more (page
faults) than clearing the few bytes that matter.
"""

from __future__ import annotations

import functools
import os
from queue import Empty, SimpleQueue
from threading import Event, Thread
from types import TracebackType
from typing import Final

from dsec.linux.syscalls import start_writing
from dsec.store.digest import STORE_CHUNK_SIZE, chunk_digest
from dsec.store.erofs.holes import ZERO_CHUNK

MAX_OPEN: Final = 4
"""Buffers that the filling side may hold at a time, besides the one it fills."""
MAX_BUFFERS: Final = MAX_OPEN + 18
"""5.5 MiB in all; what is not held is being written, or waits for that."""

_spare: list[bytearray] = []
"""Buffers for the next writer of this process, about `MAX_BUFFERS` at most. Writers of several threads share it, so
nothing that was seen of it is relied upon."""


@functools.cache
def _zero_digest() -> bytes:
    return chunk_digest(ZERO_CHUNK)


class ChunkWriter:
    """Chunks may come in any order; each is hashed whole and written up to its last used byte.

    Use as a context manager: leaving it ends the thread, also after an error. An error of hashing or writing (an
    `OSError` of the target file system), in whichever thread, is raised by the next `submit`, by `finish` or by `sync`;
    what was submitted after it is not written. One thread uses it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._work: SimpleQueue[tuple[int, bytearray, int, int] | None] = SimpleQueue()
        self._free: SimpleQueue[bytearray] = SimpleQueue()
        self._buffers = 0
        self._digests: dict[int, bytes] = {}
        self._size: int | None = None
        """Of the finished file."""
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
        while len(_spare) < MAX_BUFFERS and not self._free.empty():
            _spare.append(self._free.get())

    def take(self) -> bytearray:
        """A buffer of one chunk, with anything in it. Where all are under way, one is hashed and written first."""
        while self._free.empty():
            if self._buffers < MAX_BUFFERS:
                self._buffers += 1
                try:
                    return _spare.pop()
                except IndexError:
                    return bytearray(STORE_CHUNK_SIZE)
            if not self._help():
                break
        return self._free.get()

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
        self._digests[index] = _zero_digest()

    def finish(self, size: int) -> tuple[bytes, ...]:
        """Have all written, set the file's length and return the chunks' raw digests in order.

        The thread then makes the file durable; `sync` waits for that.
        """
        while self._help():
            pass
        self._size = size
        self._work.put(None)
        self._written.wait()
        if self._error is not None:
            raise self._error
        return tuple(self._digests[index] for index in range(len(self._digests)))

    def sync(self) -> None:
        """Wait until the finished file is durable."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _help(self) -> bool:
        """Do one chunk in the caller's thread. False: none is left that nobody does."""
        try:
            item = self._work.get_nowait()
        except Empty:
            return False
        assert item is not None  # it is put there by whoever calls this, and last
        self._do(*item)
        return True

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            self._do(*item)
        try:
            if self._error is None and self._size is not None:
                os.ftruncate(self._fd, self._size)
                self._written.set()
                os.fsync(self._fd)
        except BaseException as error:
            self._error = error
        self._written.set()

    def _do(self, index: int, buffer: bytearray, used: int, length: int) -> None:
        try:
            if self._error is None:
                self._store(index, buffer, used, length)
        except BaseException as error:
            self._error = error
        self._free.put(buffer)

    def _store(self, index: int, buffer: bytearray, used: int, length: int) -> None:
        view = memoryview(buffer)
        self._write(index, view[:used])
        view[used:length] = ZERO_CHUNK[used:length]
        self._digests[index] = chunk_digest(view[:length])

    def _write(self, index: int, content: memoryview) -> None:
        start = offset = index * STORE_CHUNK_SIZE
        while content:
            written = os.pwrite(self._fd, content, offset)
            content = content[written:]
            offset += written
        # so that less is left when it is made durable
        start_writing(self._fd, start, offset - start)
