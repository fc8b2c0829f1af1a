"""File operations through the SDK, against a fake that keeps a local directory."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from pathlib import Path

import msgspec
import pytest

from libdsec import DSecClient
from libdsec.errors import (
    ClientClosedError,
    FileOperationError,
    InvalidArgumentError,
    PathNotFoundError,
    QuotaExceededError,
    WireError,
)
from libdsec.files import Files
from libdsec.protocol.files import FileAnswer, FileEvent, FileInfo
from libdsec.protocol.frames import STDOUT, WINDOW
from libdsec.testing import FakeCall, FakeServer


def info_of(path: Path, name: str) -> FileInfo:
    kind = "directory" if path.is_dir() else "file"
    status = path.stat()
    return FileInfo(name, kind, status.st_size, status.st_mode & 0o7777, 0, 0, status.st_mtime_ns)


def script(server: FakeServer, root: Path) -> None:
    """Answers the file operations from `root`."""

    def at(path: str) -> Path:
        place = root / path.lstrip("/")
        if not place.exists():
            raise PathNotFoundError(f"cannot find {path!r}", path=path, errno=2)
        return place

    @server.answers("file.stat")
    async def _(call: FakeCall) -> FileAnswer:
        return FileAnswer(info=info_of(at(call.args.path), call.args.path))

    @server.answers("file.read")
    async def _(call: FakeCall) -> FileAnswer:
        data = at(call.args.path).read_bytes()[call.args.offset :][: call.args.length]
        await call.send(STDOUT, data, end=True)
        return FileAnswer(len(data))

    @server.answers("file.write")
    async def _(call: FakeCall) -> FileAnswer:
        data = await call.receive()
        place = root / call.args.path.lstrip("/")
        place.write_bytes((place.read_bytes() if call.args.append else b"") + data)
        return FileAnswer(len(data))

    @server.answers("file.list")
    async def _(call: FakeCall) -> FileAnswer:
        entries = [info_of(path, path.name) for path in at(call.args.path).iterdir()]
        for entry in entries[: call.args.limit]:
            await call.send(STDOUT, msgspec.msgpack.encode([entry]))
        return FileAnswer(entries=len(entries), truncated=len(entries) > call.args.limit)

    @server.answers("file.archive")
    async def _(call: FakeCall) -> FileAnswer:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            archive.add(at(call.args.path), ".")
        await call.send(STDOUT, buffer.getvalue(), end=True)
        return FileAnswer(len(buffer.getvalue()), 1)

    @server.answers("file.extract")
    async def _(call: FakeCall) -> FileAnswer:
        with tarfile.open(fileobj=io.BytesIO(await call.receive())) as archive:
            archive.extractall(root / call.args.path.lstrip("/"), filter="data")
            return FileAnswer(1, len(archive.getnames()))


@pytest.fixture
def files_test(with_fake, tmp_path: Path):
    """Runs a coroutine with the files of a fake sandbox and the directory behind them."""

    def run(use) -> None:
        (tmp_path / "root").mkdir()

        async def main(server: FakeServer, client: DSecClient) -> None:
            script(server, tmp_path / "root")
            await use(client.sandbox("s" * 24).files, tmp_path / "root", server)

        with_fake(main)

    return run


def test_read_and_write(files_test):
    async def use(files: Files, root: Path, server: FakeServer) -> None:
        assert await files.write("/a", "grüße") == 7
        assert await files.append("/a", b"\xff") == 1
        assert await files.read("/a") == "grüße".encode() + b"\xff"
        assert await files.read("/a", offset=2, length=3) == "üß".encode()[:3]
        assert await files.read_text("/a", errors="ignore") == "grüße"
        big = os.urandom(5 * WINDOW + 3)
        await files.write("/big", big)
        assert await files.read("/big") == big
        await files.write("/none", b"")
        assert await files.read("/none") == b""

    files_test(use)


def test_a_read_is_bounded(files_test):
    async def use(files: Files, root: Path, server: FakeServer) -> None:
        (root / "big").write_bytes(bytes(101))
        assert len(await files.read("/big", limit=101)) == 101
        with pytest.raises(InvalidArgumentError, match="more than 100 bytes"):
            await files.read("/big", limit=100)
        with pytest.raises(InvalidArgumentError, match="limit is 100"):
            await files.read("/big", length=102, limit=100)

    files_test(use)


def test_stat_exists_list(files_test):
    async def use(files: Files, root: Path, server: FakeServer) -> None:
        (root / "d").mkdir()
        for name in "cab":
            (root / "d" / name).write_text(name)
        assert (await files.stat("/d")).type == "directory"
        assert await files.exists("/d")
        assert not await files.exists("/e")
        with pytest.raises(PathNotFoundError):
            await files.list("/e")
        listing = await files.list("/d")
        assert [entry.path for entry in listing] == ["a", "b", "c"]
        assert not listing.truncated
        listing = await files.list("/d", limit=2)
        assert (len(listing), listing.truncated) == (2, True)

    files_test(use)


def test_another_user(files_test):
    async def use(files: Files, root: Path, server: FakeServer) -> None:
        await files.as_user(1000).exists("/x")
        assert server.calls[-1][1].user == "1000"
        await files.exists("/x")
        assert server.calls[-1][1].user is None

    files_test(use)


def test_files_up_and_down(files_test, tmp_path):
    async def use(files: Files, root: Path, server: FakeServer) -> None:
        local, data = tmp_path / "local", os.urandom(3 * WINDOW + 17)
        local.write_bytes(data)
        local.chmod(0o750)
        seen: list[int] = []
        transfer = await files.upload(local, "/up", progress=seen.append)
        assert transfer.bytes == seen[-1] == len(data)
        assert server.calls[-1][1].mode == 0o750
        assert (root / "up").read_bytes() == data
        transfer = await files.download("/up", tmp_path / "down", progress=seen.append)
        assert (tmp_path / "down").read_bytes() == data
        assert transfer.bytes == seen[-1] == len(data)
        with pytest.raises(QuotaExceededError):
            await files.download("/up", tmp_path / "again", limit=1000)
        with pytest.raises(PathNotFoundError):
            await files.download("/none", tmp_path / "again")
        with pytest.raises(FileOperationError, match="local path"):
            await files.download("/up", tmp_path / "no/such/directory")
        with pytest.raises(FileOperationError, match="local path"):
            await files.upload(tmp_path / "none", "/x")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["down", "local", "root"]

    files_test(use)


def test_directories_up_and_down(files_test, tmp_path):
    async def use(files: Files, root: Path, server: FakeServer) -> None:
        source = tmp_path / "source"
        (source / "a/b").mkdir(parents=True)
        for i in range(20):
            (source / f"a/{i}").write_bytes(os.urandom(50_000))
        transfer = await files.upload(source, "/tree")
        assert transfer.bytes == 1_000_000
        transfer = await files.download("/tree", tmp_path / "back")
        assert transfer.bytes == 1_000_000
        for i in range(20):
            assert (tmp_path / f"back/a/{i}").read_bytes() == (source / f"a/{i}").read_bytes()
        await files.archive("/tree", tmp_path / "tree.tar")
        await files.extract(tmp_path / "tree.tar", "/other")
        assert (root / "other/a/7").read_bytes() == (source / "a/7").read_bytes()
        with pytest.raises(QuotaExceededError):
            await files.download("/tree", tmp_path / "limited", limit=60_000)

    files_test(use)


def test_what_the_sandbox_has_against_an_upload_is_told(files_test, tmp_path):
    async def use(files: Files, root: Path, server: FakeServer) -> None:
        @server.answers("file.extract")
        async def _(call: FakeCall) -> FileAnswer:
            raise FileOperationError("cannot write: no space", path="/x", errno=28)

        (tmp_path / "source").mkdir()
        (tmp_path / "source/big").write_bytes(bytes(8 * WINDOW))
        with pytest.raises(FileOperationError, match="no space"):
            await files.upload(tmp_path / "source", "/x")

    files_test(use)


def test_a_download_that_breaks_off_leaves_nothing(files_test, tmp_path):
    async def use(files: Files, root: Path, server: FakeServer) -> None:
        (root / "f").write_bytes(b"x")

        @server.answers("file.read")
        async def _(call: FakeCall) -> FileAnswer:
            await call.send(STDOUT, b"half")
            raise FileOperationError("cannot read: it broke", path="/f", errno=5)

        with pytest.raises(FileOperationError, match="it broke"):
            await files.download("/f", tmp_path / "f")
        assert [path.name for path in tmp_path.iterdir()] == ["root"]

    files_test(use)


def test_a_cancelled_transfer_is_cancelled_there(files_test, tmp_path):
    async def use(files: Files, root: Path, server: FakeServer) -> None:
        started, canceled = asyncio.Event(), asyncio.Event()

        @server.answers("file.archive")
        async def _(call: FakeCall) -> FileAnswer:
            await call.send(STDOUT, tarfile.TarInfo("x").tobuf())
            started.set()
            await call.canceled.wait()
            canceled.set()
            return FileAnswer()

        task = asyncio.ensure_future(files.download("/", tmp_path / "out"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await canceled.wait()

    files_test(use)


def test_an_archive_that_is_none(files_test, tmp_path):
    async def use(files: Files, root: Path, server: FakeServer) -> None:
        @server.answers("file.archive")
        async def _(call: FakeCall) -> FileAnswer:
            await call.send(STDOUT, b"not a tar" * 100_000, end=True)
            return FileAnswer()

        with pytest.raises(WireError, match="archive"):
            await files.download("/", tmp_path / "out")

    files_test(use)


def test_watch(files_test):
    async def use(files: Files, root: Path, server: FakeServer) -> None:
        canceled = asyncio.Event()

        @server.answers("file.watch")
        async def _(call: FakeCall) -> FileAnswer:
            await call.send(STDOUT, msgspec.msgpack.encode([]))
            await call.send(STDOUT, msgspec.msgpack.encode([FileEvent("created", "a"), FileEvent("modified", "a")]))
            await call.canceled.wait()
            canceled.set()
            return FileAnswer()

        seen = []
        watch = files.watch("/", recursive=True)
        async with watch as events:
            async for event in events:
                seen.append((event.kind, event.path))
                if len(seen) == 2:
                    break
        assert seen == [("created", "a"), ("modified", "a")]
        await canceled.wait()
        with pytest.raises(ClientClosedError):
            await watch.__aiter__().__anext__()

        @server.answers("file.watch")
        async def _(call: FakeCall) -> FileAnswer:
            raise PathNotFoundError("cannot watch it: it is not there", path="/none")

        with pytest.raises(PathNotFoundError):
            await files.watch("/none").__aenter__()

    files_test(use)
