"""The client's calls about images that go elsewhere."""

from __future__ import annotations

import io
import os
from pathlib import Path

import msgspec
import pytest

from libdsec import DSecClient
from libdsec.protocol.calls import Empty
from libdsec.protocol.errors import FileOperationError, IntegrityError, WireError
from libdsec.protocol.frames import STDOUT, WINDOW
from libdsec.protocol.images import Change, ChangeCount
from libdsec.testing import FakeCall, FakeServer, serving

TAR = bytes(range(256)) * 5000
CHANGES = [Change(f"/{number:05}", "added", "file", number) for number in range(5000)]


def script(server: FakeServer) -> None:
    @server.answers("image.export")
    async def _(call: FakeCall) -> Empty:
        await call.send(STDOUT, TAR)
        if call.args.ref == "damaged:1":
            raise IntegrityError("cannot read layer sha256:0: chunk 5 does not match")
        return Empty()

    @server.answers("image.diff")
    async def _(call: FakeCall) -> ChangeCount:
        if call.args.a == "nonsense:1":
            await call.send(STDOUT, b"\xc1")
        for start in range(0, len(CHANGES), 500):
            await call.send(STDOUT, msgspec.msgpack.encode(CHANGES[start : start + 500]))
        return ChangeCount(len(CHANGES), 0, 0)


async def test_an_export_is_a_file_when_all_of_it_is_there(tmp_path: Path) -> None:
    async with FakeServer() as server, DSecClient(endpoint=server) as client:
        script(server)
        told: list[int] = []
        assert await client.export_image("a:1", tmp_path / "a.tar", progress=told.append) == len(TAR)
        assert (tmp_path / "a.tar").read_bytes() == TAR
        assert told[-1] == len(TAR)
        with pytest.raises(IntegrityError):
            await client.export_image("damaged:1", tmp_path / "b.tar")
        with pytest.raises(FileOperationError):
            await client.export_image("a:1", "/proc/none/c.tar")
        assert os.listdir(tmp_path) == ["a.tar"]


async def test_what_is_no_file_stays_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    os.mkdir(tmp_path / "directory")
    os.symlink("fifo", tmp_path / "link")
    async with FakeServer() as server, DSecClient(endpoint=server) as client:
        script(server)
        for name in ("fifo", "directory", "link"):
            with pytest.raises(FileOperationError, match="no regular file"):
                await client.export_image("a:1", tmp_path / name)
        # a call that nobody reads would hold one of the node's few turns
        assert "image.export" not in [method for method, _ in server.calls]
    assert (tmp_path / "fifo").is_fifo()
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["directory", "fifo", "link"]


async def test_an_export_into_an_open_file() -> None:
    async with FakeServer() as server, DSecClient(endpoint=server) as client:
        script(server)
        file = io.BytesIO()
        assert await client.export_image("a:1", file) == len(TAR)
        assert file.getvalue() == TAR


class _Slow(io.RawIOBase):
    """Takes a part of what it is given, as an unbuffered pipe may."""

    def __init__(self) -> None:
        self.taken = bytearray()

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        part = data[: max(1, len(data) // 2)]
        self.taken += part
        return len(part)


async def test_a_file_that_takes_parts_gets_all() -> None:
    async with FakeServer() as server, DSecClient(endpoint=server) as client:
        script(server)
        file = _Slow()
        assert await client.export_image("a:1", file) == len(TAR)  # type: ignore[arg-type]
        assert file.taken == TAR


class _FullError(OSError):
    pass


class _Full(io.RawIOBase):
    def write(self, data: object) -> int:
        raise _FullError


async def test_a_file_that_takes_no_more_ends_the_call() -> None:
    async with FakeServer() as server, DSecClient(endpoint=server) as client:
        calls: list[FakeCall] = []

        @server.answers("image.export")
        async def _(call: FakeCall) -> Empty:
            calls.append(call)
            await call.send(STDOUT, bytes(2 * WINDOW))
            return Empty()

        with pytest.raises(_FullError):
            await client.export_image("a:1", _Full())  # type: ignore[arg-type]
        await calls[0].canceled.wait()


async def test_a_diff_comes_change_by_change() -> None:
    async with FakeServer() as server, DSecClient(endpoint=server) as client:
        script(server)
        assert [change async for change in client.diff_images("a:1", "b:1")] == CHANGES
        with pytest.raises(WireError, match=r"image\.diff"):
            _ = [change async for change in client.diff_images("nonsense:1", "b:1")]


def test_the_blocking_twins(tmp_path: Path) -> None:
    from libdsec.sync import DSecClient as Blocking

    with serving(f"{tmp_path}/s") as server:
        script(server)
        with Blocking(f"unix://{tmp_path}/s") as client:
            assert list(client.diff_images("a:1", "b:1")) == CHANGES
            assert client.export_image("a:1", tmp_path / "a.tar") == len(TAR)
