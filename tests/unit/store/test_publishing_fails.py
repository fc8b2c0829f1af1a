"""Publishing that fails, is killed, or meets another: nothing half published, and it goes on where it was."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from published import (
    CHUNK,
    IMPATIENT,
    data_of,
    node,
    noise,
    objects_in,
    open_impatient,
    put_image,
    quiet,
    read_chunks,
    write,
)

from dsec.store.remote.objects import Objects
from libdsec.protocol.errors import (
    CapacityError,
    DSecError,
    ImageNotFoundError,
    IntegrityError,
    InvalidArgumentError,
    PermissionDeniedError,
    UnavailableError,
)

DATA = noise(1) + bytes(2 * CHUNK) + noise(2) + b"text " * 200_000


class FailingObjects(Objects):
    """A store in which an operation fails, from the n-th on."""

    def fail(self, after: int, error: Exception) -> None:
        self.left, self.error = after, error

    async def _tried(self, doing, size, ask):  # type: ignore[no-untyped-def]
        if doing.startswith("write"):
            self.left -= 1
            if self.left < 0:
                raise self.error
        return await super()._tried(doing, size, ask)


@pytest.mark.parametrize("after", range(4))
async def test_a_publish_that_fails_at_any_write(tmp_path: Path, after: int) -> None:
    inner = open_impatient(str(tmp_path / "shared"))
    failing = FailingObjects(inner._store, inner.url, directory=inner.directory, patience=IMPATIENT)
    failing.fail(after, CapacityError("the store is full"))
    with node(tmp_path / "a", failing) as (local, shared), node(tmp_path / "b", inner) as (_, reader):
        layer = put_image(local, "app:v1", DATA).layers[0]
        with pytest.raises(CapacityError):
            await shared.publish("app:v1", quiet)
        with pytest.raises(ImageNotFoundError):
            await reader.resolve("app:v1")
        failing.fail(99, CapacityError(""))
        again = await shared.publish("app:v1", quiet)
        assert (again.chunks_new == 0) == (after > 0)
        assert await read_chunks(reader, (await reader.resolve("app:v1")).layers[0]) == data_of(layer)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from published import node, open_impatient, quiet
from dsec.store.remote.objects import Objects, Patience
from dsec.store.remote.opening import open_store

left = int(sys.argv[3])
put = Objects.put

async def put_and_die(self, *args, **options):
    global left
    done = await put(self, *args, **options)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

Objects.put = put_and_die

async def main():
    base = Path(sys.argv[2])
    with node(base / "maker", open_impatient(str(base / "shared"))) as (_, shared):
        await shared.publish("app:v1", quiet)

asyncio.run(main())
"""


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_publisher_that_is_killed(tmp_path: Path, writes: int) -> None:
    objects = open_impatient(str(tmp_path / "shared"))
    with node(tmp_path / "maker", objects) as (local, _):
        data = data_of(put_image(local, "app:v1", DATA).layers[0])
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path), str(writes)]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
    left = objects_in(tmp_path / "shared")
    assert len(left) == writes

    async def go_on() -> None:
        with node(tmp_path / "maker", objects) as (_, shared), node(tmp_path / "b", objects) as (_, reader):
            with pytest.raises(ImageNotFoundError):
                await reader.resolve("app:v1")
            assert (await shared.publish("app:v1", quiet)).chunks_new == 0
            assert left.items() <= objects_in(tmp_path / "shared").items()
            assert await read_chunks(reader, (await reader.resolve("app:v1")).layers[0]) == data

    asyncio.run(go_on())


async def test_two_publishers_at_once(tmp_path: Path) -> None:
    objects = open_impatient(str(tmp_path / "shared"))
    with node(tmp_path / "a", objects) as (one, first), node(tmp_path / "b", objects) as (two, second):
        put_image(one, "app:v1", DATA)
        put_image(two, "app:v1", DATA, at=2.0)
        await asyncio.gather(first.publish("app:v1", quiet), second.publish("app:v1", quiet))
        one.remove("app:v1", lambda _: False)
        found = (await first.resolve("app:v1")).layers[0]
        assert await read_chunks(first, found) == data_of(two.catalogue.get("app:v1").layers[0])
        put_image(one, "app:v2", noise(1))
        put_image(two, "app:v2", noise(2))
        done = await asyncio.gather(
            first.publish("app:v2", quiet), second.publish("app:v2", quiet), return_exceptions=True
        )
        assert sorted(type(each).__name__ for each in done) == ["AlreadyExistsError", "ImagePublished"]


async def test_a_canceled_publish_leaves_no_name(tmp_path: Path) -> None:
    objects = open_impatient(str(tmp_path / "shared"))
    with node(tmp_path / "a", objects) as (local, shared), node(tmp_path / "b", objects) as (_, reader):
        put_image(local, "app:v1", b"".join(noise(number) for number in range(40)))
        publishing = asyncio.ensure_future(shared.publish("app:v1", lambda _: publishing.cancel()))
        with pytest.raises(asyncio.CancelledError):
            await publishing
        with pytest.raises(ImageNotFoundError):
            await reader.resolve("app:v1")
        await shared.publish("app:v1", quiet)


async def test_damage_here_is_not_published(tmp_path: Path) -> None:
    with node(tmp_path / "a", open_impatient(str(tmp_path / "shared"))) as (local, shared):
        layer = put_image(local, "app:v1", DATA).layers[0]
        content = bytearray(data_of(layer))
        content[5] ^= 1
        write(layer.data, bytes(content))
        with pytest.raises(IntegrityError, match="chunk 0"):
            await shared.publish("app:v1", quiet)
        os.unlink(layer.data)
        with pytest.raises(IntegrityError, match="cannot read"):
            await shared.publish("app:v1", quiet)
        assert objects_in(tmp_path / "shared") == {}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Generic LocalFileSystem error: No space left on device (os error 28)", CapacityError),
        ("Generic LocalFileSystem error: Read-only file system (os error 30)", PermissionDeniedError),
        ("Generic S3 error: whatever", UnavailableError),
    ],
)
async def test_what_a_store_says_is_told_apart(
    tmp_path: Path, said: str, expected: type[DSecError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def put(*_: object, **__: object) -> None:
        raise OSError(said)

    monkeypatch.setattr("dsec.store.remote.objects.obstore.put_async", put)
    with node(tmp_path / "a", open_impatient("memory:///")) as (local, shared):
        put_image(local, "app:v1", DATA)
        with pytest.raises(expected):
            await shared.publish("app:v1", quiet)


@pytest.mark.parametrize("url", ["", "relative/dir", "ftp://host/x", "s3://", "http://", "gopher:x", "file:relative"])
def test_urls_that_are_no_store(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot open the shared store"):
        open_impatient(url)
