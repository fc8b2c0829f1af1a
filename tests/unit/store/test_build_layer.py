"""The build as a whole: what is left after success and after each kind of failure."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Generator
from pathlib import Path

import pytest
from layer_trees import noise

from dsec.store.build import build_layer
from dsec.store.digest import LAYER_GENERATION, STORE_CHUNK_SIZE, layer_digest
from dsec.store.erofs.chunks import ChunkWriter
from dsec.store.sources import BytesContent, Entry, MemorySource, SourceItem
from dsec.store.tree import Node
from libdsec.protocol.errors import (
    AlreadyExistsError,
    CapacityError,
    ConflictError,
    FileOperationError,
    InvalidArgumentError,
    QuotaExceededError,
)

REG = stat.S_IFREG | 0o644


def source(*contents: bytes) -> MemorySource:
    return MemorySource([Entry(b"f%d" % n, Node(REG), BytesContent(content)) for n, content in enumerate(contents)])


def test_a_build_leaves_two_files(tmp_path: Path) -> None:
    built = build_layer(source(b"a", noise(400_000)), tmp_path, "x")
    assert sorted(os.listdir(tmp_path)) == ["x.data", "x.erofs"]
    assert built.metadata_path == str(tmp_path / "x.erofs")
    assert built.data_path == str(tmp_path / "x.data")
    assert (built.files, built.inodes, built.content_bytes) == (2, 3, 400_001)
    assert built.chunk_size == STORE_CHUNK_SIZE
    assert layer_digest(built.metadata_digest, built.chunk_digests) == built.layer_digest


def test_the_digest_covers_everything_it_should() -> None:
    base = layer_digest(b"m" * 32, [b"c" * 32])
    assert base.startswith("sha256:")
    assert len(base) == 71
    others = {
        layer_digest(b"n" * 32, [b"c" * 32]),
        layer_digest(b"m" * 32, [b"d" * 32]),
        layer_digest(b"m" * 32, [b"c" * 32] * 2),
        layer_digest(b"m" * 32, [b"c" * 32], generation=LAYER_GENERATION + 1),
        layer_digest(b"m" * 32, [b"c" * 32], chunk_size=4096),
    }
    assert len(others | {base}) == 6
    with pytest.raises(ValueError, match="32 bytes"):
        layer_digest(b"m", [])


def test_progress_counts_bytes_up_to_the_end(tmp_path: Path) -> None:
    seen: list[int] = []
    build_layer(source(noise(3 << 20), noise(2 << 20)), tmp_path, "x", progress=seen.append)
    assert seen == sorted(seen)
    assert len(seen) >= 4
    assert seen[-1] <= 5 << 20


class _Failing:
    """Yields some files, then fails."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.closed = False

    def entries(self) -> Generator[SourceItem, None, None]:
        try:
            yield from source(noise(700_000), b"x").entries()
            raise self._error
        finally:
            self.closed = True


@pytest.mark.parametrize("error", [InvalidArgumentError("no"), FileOperationError("no"), KeyboardInterrupt()])
def test_a_failing_source_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    failing = _Failing(error)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(type(error)):
        build_layer(failing, tmp_path, "x")
    assert os.listdir(tmp_path) == []
    assert failing.closed
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_failing_progress_leaves_nothing(tmp_path: Path) -> None:
    def stop(_: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        build_layer(source(noise(3 << 20)), tmp_path, "x", progress=stop)
    assert os.listdir(tmp_path) == []


def test_content_that_ends_early_is_named(tmp_path: Path) -> None:
    short = Entry(b"dir/short", Node(REG), BytesContent(b"x" * 100, size=5000))
    with pytest.raises(InvalidArgumentError, match="/dir/short: ends 4900 bytes or more before its size"):
        build_layer(MemorySource([short]), tmp_path, "x")
    huge = Entry(b"huge", Node(REG), BytesContent(b"", size=(8 << 40) + 1))
    with pytest.raises(InvalidArgumentError, match="/huge: file of 8796093022209 bytes"):
        build_layer(MemorySource([huge]), tmp_path, "x")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
def test_a_full_disk_is_typed_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = os.rename

    def second_fails(old: str, new: str) -> None:
        if new.endswith(".erofs"):
            full()
        real(old, new)

    if step == "write":
        monkeypatch.setattr(ChunkWriter, "_write", full)
    elif step == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(CapacityError, match="No space left"):
        build_layer(source(*[noise(9 << 20)] * 2), tmp_path, "x")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("size", [5 * STORE_CHUNK_SIZE, STORE_CHUNK_SIZE * 2 // 3])
def test_a_layer_of_more_chunks_than_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("dsec.store.erofs.data.MAX_CHUNKS", 4)
    with pytest.raises(QuotaExceededError, match="cannot build layer: it has more than"):
        build_layer(source(*[noise(size, n) for n in range(8)]), tmp_path, "x")
    assert os.listdir(tmp_path) == []


def test_a_layer_is_never_written_over(tmp_path: Path) -> None:
    first = build_layer(source(b"1"), tmp_path, "x")
    before = Path(first.metadata_path).read_bytes()
    with pytest.raises(AlreadyExistsError):
        build_layer(source(b"2"), tmp_path, "x")
    assert Path(first.metadata_path).read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["x.data", "x.erofs"]


def test_what_a_dead_builder_left_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "x.erofs.partial").write_bytes(b"old" * 100_000)
    (tmp_path / "x.data.partial").write_bytes(b"old" * 100_000)
    (tmp_path / "x.data").write_bytes(b"named before its metadata")
    built = build_layer(source(b"1"), tmp_path, "x")
    assert sorted(os.listdir(tmp_path)) == ["x.data", "x.erofs"]
    assert os.stat(built.data_path).st_size == built.data_size == 4096


def test_two_builders_of_one_name(tmp_path: Path) -> None:
    with open(tmp_path / "x.erofs.partial", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConflictError, match="being built"):
            build_layer(source(b"1"), tmp_path, "x")
        assert os.listdir(tmp_path) == ["x.erofs.partial"]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a\0b"])
def test_a_name_is_a_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not a file name"):
        build_layer(source(b"1"), tmp_path, name)


def test_many_files_keep_memory_bounded(tmp_path: Path) -> None:
    """64 MiB of contents, of which no more than the open and queued chunks may be in memory at once."""
    import tracemalloc

    def entries() -> Generator[SourceItem, None, None]:
        for n in range(64):
            yield Entry(b"f%d" % n, Node(REG), BytesContent(noise(1 << 20)))

    tracemalloc.start()
    try:
        build_layer(MemorySource(entries()), tmp_path, "x")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
