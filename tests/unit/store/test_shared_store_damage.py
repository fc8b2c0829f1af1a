"""A store that is damaged, hostile, slow or full: an error that says so, never a wrong byte, nothing half published."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from published import (
    CHUNK,
    node,
    noise,
    objects_in,
    one,
    open_impatient,
    put_image,
    quiet,
    read_chunks,
    untouched,
    write,
)

from dsec.store.digest import chunk_digest
from dsec.store.records import REMOTE_NAME, LayerRecord
from dsec.store.remote import beside, chunks
from dsec.store.remote.chunks import zstd
from dsec.store.remote.known import pieces
from dsec.store.remote.manifest import MAX_MANIFEST_BYTES
from dsec.store.remote.objects import Patience
from dsec.store.remote.opening import open_store
from dsec.store.remote.shared import SharedStore
from dsec.store.remote.superblock import check_superblock
from dsec.store.verify import read_layer_file
from libdsec.protocol.errors import (
    CapacityError,
    ConflictError,
    DSecError,
    IntegrityError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedOperationError,
)

DATA = noise(1) + bytes(2 * CHUNK) + noise(2) + b"text " * 200_000


@pytest.fixture
def shared_dir(tmp_path: Path) -> Path:
    """A store that has `app:v1`."""

    async def fill() -> None:
        with node(tmp_path / "maker", open_impatient(str(tmp_path / "shared"))) as (local, shared):
            put_image(local, "app:v1", DATA)
            await shared.publish("app:v1", quiet)

    asyncio.run(fill())
    return tmp_path / "shared"


async def resolve_fails(tmp_path: Path, directory: Path, expected: type[DSecError], match: str | None = None) -> None:
    with node(tmp_path / "reader", open_impatient(str(directory))) as (local, reader):
        with pytest.raises(expected, match=match):
            await reader.resolve("app:v1")
        assert untouched(local)


def manifest_with(**fields: object) -> Callable[[bytes], bytes]:
    return lambda content: msgspec.json.encode({**msgspec.json.decode(content), **fields})


def layer_with(**fields: object) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        manifest = msgspec.json.decode(content)
        manifest["layers"][0].update(fields)
        return msgspec.json.encode(manifest)

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda content: content[:-9], IntegrityError),
        (lambda content: b"", IntegrityError),
        (lambda content: b"\xff" * 100, IntegrityError),
        (lambda content: b"[" * 100_000, IntegrityError),
        (lambda content: b" " * (MAX_MANIFEST_BYTES + 1), IntegrityError),
        (manifest_with(ref="app:v2"), IntegrityError),
        (manifest_with(schema=2), UnsupportedOperationError),
        (manifest_with(kind="other"), IntegrityError),
        (manifest_with(layers=[]), IntegrityError),
        (manifest_with(layers="none"), IntegrityError),
        (manifest_with(config={"env": 1}), IntegrityError),
        (layer_with(digest="sha256:../../etc/passwd"), IntegrityError),
        (layer_with(digest="sha256:" + "0" * 64), IntegrityError),
        (layer_with(data_bytes=1), IntegrityError),
        (layer_with(data_bytes=-1), IntegrityError),
        (layer_with(files=2**80), IntegrityError),
        (layer_with(metadata_digest="0" * 64), IntegrityError),
    ],
)
async def test_a_damaged_manifest(
    tmp_path: Path, shared_dir: Path, change: Callable[[bytes], bytes], expected: type[DSecError]
) -> None:
    manifest = one(shared_dir, "manifest")
    manifest.write_bytes(change(manifest.read_bytes()))
    await resolve_fails(tmp_path, shared_dir, expected)


async def test_a_manifest_with_more_layers_than_a_sandbox_can_have(tmp_path: Path, shared_dir: Path) -> None:
    manifest = one(shared_dir, "manifest")
    content = msgspec.json.decode(manifest.read_bytes())
    content["layers"] *= 1000
    manifest.write_bytes(msgspec.json.encode(content))
    await resolve_fails(tmp_path, shared_dir, IntegrityError, "length <= 128")


@pytest.mark.parametrize("kind", ["table", "metadata"])
async def test_a_layer_of_which_something_is_missing(tmp_path: Path, shared_dir: Path, kind: str) -> None:
    one(shared_dir, kind).unlink()
    await resolve_fails(tmp_path, shared_dir, IntegrityError, "missing")


async def test_a_table_that_is_too_large_is_not_read(tmp_path: Path, shared_dir: Path) -> None:
    with one(shared_dir, "table").open("r+b") as file:
        file.truncate(1 << 40)
    await resolve_fails(tmp_path, shared_dir, IntegrityError, "more than")


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: content + content,
        lambda content: b"",
        lambda content: zstd.compress(b"another image"),
        lambda content: zstd.compress(bytes(300 << 20)),
    ],
)
async def test_damaged_metadata(tmp_path: Path, shared_dir: Path, change: Callable[[bytes], bytes]) -> None:
    metadata = one(shared_dir, "metadata")
    metadata.write_bytes(change(metadata.read_bytes()))
    await resolve_fails(tmp_path, shared_dir, IntegrityError, "metadata")


def with_field(at: int, value: int) -> Callable[[bytes], bytes]:
    return lambda image: image[:at] + bytes([value]) + image[at + 1 :]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda image: image[:1000], "it has 1000 bytes"),
        (lambda image: image[4096:] + bytes(4096), "does not begin like one"),
        (lambda image: image + bytes(4096), "blocks"),
        (with_field(1024 + 12, 9), "does not begin like one"),
        (with_field(1024 + 80, 0x0D), "features"),
        (with_field(1024 + 84, 1), "features"),
        (with_field(1024 + 8, 0x83), "features"),
        (with_field(1024 + 86, 2), "2 devices"),
        (with_field(1024 + 92, 1), "name prefixes"),
        (with_field(1152 + 64, 77), "of data"),
    ],
)
def test_a_metadata_image_that_is_none_of_ours(tmp_path: Path, change: Callable[[bytes], bytes], why: str) -> None:
    """Made by somebody who may write into the store, so that all digests match."""
    with node(tmp_path / "maker", open_impatient("memory:///")) as (local, _):
        layer = put_image(local, "app:v1", DATA).layers[0]
        image, file = Path(layer.metadata).read_bytes(), read_layer_file(layer)
        check_superblock(image, file)
        with pytest.raises(IntegrityError, match=why):
            check_superblock(change(image), file)


async def verified(shared: SharedStore, layer: LayerRecord) -> list[int]:
    """Fetches all, and holds each chunk against its digest, as the loader does. Chunks that are right."""
    digests = pieces(read_layer_file(layer).chunk_digests)
    right = []

    def deliver(chunk: int, content: bytes) -> None:
        assert len(content) <= CHUNK
        if chunk_digest(content) == digests[chunk]:
            right.append(chunk)

    source = shared.open_source(layer)
    for chunk in range(source.chunks):
        with contextlib.suppress(IntegrityError):
            await source.fetch(chunk, 1, deliver)
    return right


@pytest.mark.parametrize("length", [0, 100, 300_000])
async def test_a_truncated_pack(tmp_path: Path, shared_dir: Path, length: int) -> None:
    with one(shared_dir, "pack").open("r+b") as file:
        file.truncate(length)
    with node(tmp_path / "reader", open_impatient(str(shared_dir))) as (_, reader):
        layer = (await reader.resolve("app:v1")).layers[0]
        with pytest.raises(IntegrityError, match="ends before"):
            await read_chunks(reader, layer)
        # what lies before the cut, and nowhere, is right
        right = await verified(reader, layer)
        assert 1 in right
        assert (0 in right) == (length > CHUNK)


async def test_a_missing_pack(tmp_path: Path, shared_dir: Path) -> None:
    one(shared_dir, "pack").unlink()
    with node(tmp_path / "reader", open_impatient(str(shared_dir))) as (_, reader):
        layer = (await reader.resolve("app:v1")).layers[0]
        with pytest.raises(IntegrityError, match="missing"):
            await read_chunks(reader, layer)


async def test_a_pack_whose_chunks_changed_places(tmp_path: Path, shared_dir: Path) -> None:
    pack = one(shared_dir, "pack")
    content = pack.read_bytes()
    pack.write_bytes(content[CHUNK : 2 * CHUNK] + content[:CHUNK] + content[2 * CHUNK :])
    with node(tmp_path / "reader", open_impatient(str(shared_dir))) as (_, reader):
        layer = (await reader.resolve("app:v1")).layers[0]
        right = await verified(reader, layer)
        assert 0 not in right
        assert 3 not in right
        assert 1 in right


def test_a_chunk_never_becomes_more_than_a_chunk() -> None:
    bomb = zstd.compress(bytes(256 << 20))
    with pytest.raises(IntegrityError, match="has not the 262144 bytes"):
        chunks.decode_chunk(memoryview(bomb), chunks.ZSTD, CHUNK)
    wide = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 26})
    greedy = wide.compress(bytes(CHUNK)) + wide.flush()  # in two steps it cannot know how little it will be
    for wrong in (greedy, b"", b"noise", zstd.compress(bytes(CHUNK - 1)), zstd.compress(bytes(CHUNK))[:-1]):
        with pytest.raises(IntegrityError):
            chunks.decode_chunk(memoryview(wrong), chunks.ZSTD, CHUNK)
    assert chunks.decode_chunk(memoryview(zstd.compress(bytes(CHUNK))), chunks.ZSTD, CHUNK) == bytes(CHUNK)


async def test_chunks_that_a_layer_has_not(tmp_path: Path, shared_dir: Path) -> None:
    with node(tmp_path / "reader", open_impatient(str(shared_dir))) as (_, reader):
        layer = (await reader.resolve("app:v1")).layers[0]
        source = reader.open_source(layer)
        for first, count in ((0, source.chunks + 1), (-1, 1), (source.chunks, 1), (0, -1)):
            with pytest.raises(InvalidArgumentError):
                await source.fetch(first, count, lambda *_: None)
        assert await source.fetch(0, 0, lambda *_: None) == (0, 0)


@pytest.mark.parametrize("name", [REMOTE_NAME, beside.TABLE_NAME])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"noise"])
async def test_what_lies_beside_a_layer_is_checked(
    tmp_path: Path, shared_dir: Path, name: str, content: bytes | None
) -> None:
    with node(tmp_path / "reader", open_impatient(str(shared_dir))) as (_, reader):
        layer = (await reader.resolve("app:v1")).layers[0]
        path = Path(layer.directory) / name
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(IntegrityError, match=r"cannot use layer"):
            reader.open_source(layer)


async def test_a_layer_of_another_store(tmp_path: Path, shared_dir: Path) -> None:
    with node(tmp_path / "reader", open_impatient(str(shared_dir))) as (local, reader):
        layer = (await reader.resolve("app:v1")).layers[0]
        elsewhere = SharedStore(open_impatient(str(tmp_path / "elsewhere")), local)
        with contextlib.closing(elsewhere):
            with pytest.raises(UnavailableError, match="lies in"):
                elsewhere.open_source(layer)
            # and it cannot be sent there, since its data is not here
            write(layer.data, bytes(layer.data_bytes))
            with pytest.raises(ConflictError, match="image fetch"):
                await elsewhere.publish("app:v1", quiet)
            assert not [name for name in objects_in(tmp_path / "elsewhere") if name.startswith("names")]


async def test_a_store_that_hangs(tmp_path: Path, shared_dir: Path) -> None:
    """As a mounted file system does that has lost its server: here the open of a pipe that nobody writes to."""
    objects = open_store(str(shared_dir), Patience(attempt_s=0.05, attempts=2, backoff_s=0.0))
    manifest = one(shared_dir, "manifest")
    manifest.unlink()
    os.mkfifo(manifest)
    try:
        with node(tmp_path / "reader", objects) as (local, reader):
            with pytest.raises(UnavailableError, match="did not answer"):
                await reader.resolve("app:v1")
            assert untouched(local)
    finally:
        os.close(os.open(manifest, os.O_RDWR))  # lets those go that wait for it


async def test_a_layer_that_is_named_twice(tmp_path: Path, shared_dir: Path) -> None:
    manifest = one(shared_dir, "manifest")
    content = msgspec.json.decode(manifest.read_bytes())
    content["layers"] *= 2
    manifest.write_bytes(msgspec.json.encode(content))
    with node(tmp_path / "reader", open_impatient(str(shared_dir))) as (local, reader):
        found = await reader.resolve("app:v1")
        assert found.layers[0] == found.layers[1]
        assert local.catalogue.get("app:v1") == found


@pytest.mark.parametrize("step", ["write_durably", "write_beside"])
async def test_a_full_disk_while_resolving(
    tmp_path: Path, shared_dir: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"dsec.store.remote.resolve.{step}", full)
    await resolve_fails(tmp_path, shared_dir, CapacityError, "no room")


def test_a_directory_that_is_not_there_is_no_empty_store(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="mount the share"):
        open_store(str(tmp_path / "share" / "dsec"))
    assert not (tmp_path / "share").exists()
