"""File systems without room, on both sides of a shared store, and one that is unmounted."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from published import data_of, node, noise, objects_in, open_impatient, put_image, quiet, read_chunks

from libdsec.protocol.errors import CapacityError, ImageNotFoundError, UnavailableError

pytestmark = pytest.mark.needs("root", "linux")
MIB = 1024 * 1024


@contextlib.contextmanager
def small(path: Path, size: int) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "small", str(path)], check=True, timeout=10)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True, timeout=10)


async def test_a_store_that_is_full(tmp_path: Path) -> None:
    with small(tmp_path / "small", 2 * MIB) as directory:
        objects = open_impatient(str(directory))
        with node(tmp_path / "a", objects, raw=True) as (local, shared), node(tmp_path / "b", objects) as (_, reader):
            put_image(local, "small:1", noise(1, MIB // 2))
            put_image(local, "large:1", noise(2, 3 * MIB))
            with pytest.raises(CapacityError, match="No space left"):
                await shared.publish("large:1", quiet)
            assert objects_in(directory) == {}
            # a raw data file has no room beside its pack
            put_image(local, "raw:1", noise(3, MIB))
            with pytest.raises(CapacityError):
                await shared.publish("raw:1", quiet)
            assert not [name for name in objects_in(directory) if name.startswith("names") or "partial" in name]
            for name in list(objects_in(directory)):
                (directory / name).unlink()
            await shared.publish("small:1", quiet)
            found = (await reader.resolve("small:1")).layers[0]
            assert await read_chunks(reader, found) == data_of(local.catalogue.get("small:1").layers[0])
            with pytest.raises(ImageNotFoundError):
                await reader.resolve("large:1")


async def test_a_share_that_is_unmounted_is_no_empty_store(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with small(tmp_path / "share", 2 * MIB) as directory:
            objects = open_impatient(str(directory))
            local, shared = stack.enter_context(node(tmp_path / "a", objects))
            put_image(local, "app:1", noise(1, MIB // 4))
            put_image(local, "app:2", noise(2, MIB // 4))
            await shared.publish("app:1", quiet)
        assert directory.is_dir()
        for ask in (shared.publish("app:2", quiet), shared.resolve("app:3"), shared.list(None)):
            with pytest.raises(UnavailableError, match="mount the share"):
                await ask
        assert objects_in(directory) == {}


async def test_a_node_that_is_full(tmp_path: Path) -> None:
    objects = open_impatient(str(tmp_path / "shared"))
    with node(tmp_path / "a", objects) as (local, shared), small(tmp_path / "small", MIB) as state:
        put_image(local, "app:1", noise(1, MIB))
        await shared.publish("app:1", quiet)
        with node(state / "b", objects) as (other, reader):
            filler = state / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            with pytest.raises(CapacityError):
                await reader.resolve("app:1")
            assert other.catalogue.list() == ()
            filler.unlink()
            found = (await reader.resolve("app:1")).layers[0]
            assert len(await read_chunks(reader, found)) == MIB


async def test_where_nothing_has_room_images_can_be_removed(tmp_path: Path) -> None:
    objects = open_impatient(str(tmp_path / "shared"))
    with small(tmp_path / "small", 4 * MIB) as state, node(state / "a", objects) as (local, _):
        for name in ("one:1", "two:1"):
            put_image(local, name, noise(ord(name[0]), MIB // 2))
        for name in ("one:1", "two:1"):
            fill(state / f"filler-{name}")
            with pytest.raises(CapacityError), local.catalogue.transaction() as database:
                database.execute("INSERT INTO pins SELECT ref, 0 FROM images")
            local.remove(name, lambda _: False)
        assert local.catalogue.list() == ()


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
