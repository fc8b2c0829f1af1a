"""The two threads that hash and write chunks: whichever of them fails, the caller hears of it, and none is left."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from dsec.store.digest import STORE_CHUNK_SIZE
from dsec.store.erofs import chunks
from dsec.store.erofs.chunks import MAX_BUFFERS, ChunkWriter

WAIT_S = 30.0


@pytest.fixture
def target(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "data", os.O_RDWR | os.O_CREAT, 0o600)
    yield fd
    os.close(fd)


def submit(writer: ChunkWriter, index: int, content: bytes) -> None:
    buffer = writer.take()
    buffer[: len(content)] = content
    writer.submit(index, buffer, len(content))


def submit_all(writer: ChunkWriter, count: int) -> None:
    for index in range(count):
        submit(writer, index, b"%d" % index)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "layer-chunks"]


class Held:
    """The second thread waits before it writes; the caller's raises `error`, if there is one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> None:
        self.go_on = threading.Event()
        caller = threading.current_thread()
        real = ChunkWriter._write

        def write(writer: ChunkWriter, index: int, content: memoryview) -> None:
            if threading.current_thread() is not caller:
                assert self.go_on.wait(WAIT_S)
            elif error is not None:
                raise error
            real(writer, index, content)

        monkeypatch.setattr(ChunkWriter, "_write", write)


def test_a_caller_that_would_wait_works(target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, None)
    count = 3 * MAX_BUFFERS
    with ChunkWriter(target) as writer:
        submit_all(writer, count)
        held.go_on.set()
        digests = writer.finish(count * STORE_CHUNK_SIZE)
        writer.sync()
    whole = [(b"%d" % index).ljust(STORE_CHUNK_SIZE, b"\0") for index in range(count)]
    assert digests == tuple(blake3(chunk).digest() for chunk in whole)
    assert os.pread(target, len(whole) * STORE_CHUNK_SIZE, 0) == b"".join(whole)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_an_error_of_the_callers_own_turn_comes_out(
    target: int, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    held = Held(monkeypatch, error)

    def write_all() -> None:
        with ChunkWriter(target) as writer:
            try:
                submit_all(writer, MAX_BUFFERS + 2)
            finally:
                held.go_on.set()

    with pytest.raises(type(error)):
        write_all()
    assert not threads()


def test_an_error_of_the_second_thread_comes_out_of_finish(target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def write(*_: object) -> None:
        failed.set()
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(ChunkWriter, "_write", write)
    with ChunkWriter(target) as writer:
        submit(writer, 0, b"a")
        assert failed.wait(WAIT_S)
        with pytest.raises(OSError, match="broken"):
            writer.finish(STORE_CHUNK_SIZE)
    assert not threads()


def test_what_cannot_be_made_durable_comes_out_of_sync(target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def fsync(_: int) -> None:
        assert asked.wait(WAIT_S)
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", fsync)
    with ChunkWriter(target) as writer:
        submit(writer, 0, b"a")
        writer.finish(STORE_CHUNK_SIZE)
        asked.set()
        with pytest.raises(OSError, match="broken"):
            writer.sync()


def test_who_leaves_without_finishing_leaves_no_thread(target: int) -> None:
    with ChunkWriter(target) as writer:
        submit_all(writer, 3)
        writer.take()
    assert not threads()
    assert os.fstat(target).st_size == 2 * STORE_CHUNK_SIZE + 1


def test_a_spare_buffer_that_another_writer_takes_first(target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Raced(list[bytearray]):
        """As a list looks to who saw something in it a moment before another thread took that."""

        def __bool__(self) -> bool:
            return True

    monkeypatch.setattr(chunks, "_spare", Raced())
    with ChunkWriter(target) as writer:
        assert len(writer.take()) == STORE_CHUNK_SIZE
