"""Images of chosen data, shared stores to put them in, and another node to read them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

from dsec.store.digest import LAYER_GENERATION, chunk_digest, layer_digest
from dsec.store.erofs.metadata import build_metadata
from dsec.store.local import LocalStore
from dsec.store.records import DATA_NAME, METADATA_NAME, ImageRecord, LayerFile, LayerRecord
from dsec.store.remote.objects import Objects, Patience
from dsec.store.remote.opening import open_store
from dsec.store.remote.shared import SharedStore
from dsec.store.tree import Tree
from libdsec.protocol.environment import ImageConfig

IMPATIENT = Patience(attempt_s=5.0, attempts=2, backoff_s=0.0)
CHUNK = 256 * 1024


def noise(seed: int, size: int = CHUNK) -> bytes:
    """Bytes that no compressor makes smaller."""
    return random.Random(seed).randbytes(size)


def put_image(local: LocalStore, ref: str, *datas: bytes, at: float = 1.0) -> ImageRecord:
    """An image with a layer for each of `datas`, which its data file is, byte for byte; its tree is empty."""
    with local.taking() as taken, local.build_directory() as directory:
        layers = []
        for data in datas:
            files = {METADATA_NAME: f"{directory}/metadata", DATA_NAME: f"{directory}/data"}
            Path(files[DATA_NAME]).write_bytes(data)
            digests = [chunk_digest(data[start : start + CHUNK]) for start in range(0, len(data), CHUNK)]
            metadata = bytes(build_metadata(Tree(), -(-len(data) // 4096), b"".join(digests))[0])
            Path(files[METADATA_NAME]).write_bytes(metadata)
            own = hashlib.sha256(metadata).digest()
            digest = layer_digest(own, digests)
            file = LayerFile(1, LAYER_GENERATION, digest, own, len(metadata), len(data), CHUNK, b"".join(digests), 1)
            layers.append(taken.add(file, files))
        return local.publish_image(ImageRecord(ref, "base", tuple(layers), ImageConfig({"A": "1"}), at))


@contextlib.contextmanager
def node(state: Path, objects: Objects, *, raw: bool = False) -> Iterator[tuple[LocalStore, SharedStore]]:
    """A node with that shared store."""
    with (
        contextlib.closing(LocalStore(str(state))) as local,
        contextlib.closing(SharedStore(objects, local, raw=raw)) as shared,
    ):
        yield local, shared


def open_impatient(url: str) -> Objects:
    if url.startswith("/"):
        os.makedirs(url, exist_ok=True)
    return open_store(url, IMPATIENT)


async def read_chunks(shared: SharedStore, layer: LayerRecord, first: int = 0, count: int | None = None) -> bytes:
    """What a fetch of these chunks delivers, in their order."""
    source = shared.open_source(layer)
    count = source.chunks - first if count is None else count
    got: dict[int, bytes] = {}

    def deliver(chunk: int, content: bytes) -> None:
        assert chunk not in got
        got[chunk] = content

    await source.fetch(first, count, deliver)
    assert sorted(got) == list(range(first, first + count))
    return b"".join(got[chunk] for chunk in sorted(got))


def data_of(layer: LayerRecord) -> bytes:
    return Path(layer.data).read_bytes()


def objects_in(directory: Path) -> dict[str, int]:
    """Every object of a store in a directory, and its length."""
    found = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            found[os.path.relpath(path, directory)] = os.path.getsize(path)
    return found


def quiet(_: object) -> None:
    """No progress."""


def write(path: str, content: bytes) -> None:
    """For tests that are coroutines."""
    Path(path).write_bytes(content)


def one(directory: Path, kind: str) -> Path:
    """Its manifest, table, metadata or (first) pack."""
    pattern = {"manifest": "names/*/*/*", "table": "layers/*/layer", "metadata": "layers/*/*.zst", "pack": "packs/*/*"}
    return sorted(directory.glob(pattern[kind]))[0]


def untouched(local: LocalStore) -> bool:
    """Nothing of a resolve that failed is left."""
    return (
        os.listdir(local.layers_dir) == []
        and os.listdir(os.path.join(local.state_dir, "building")) == []
        and not local.catalogue.list()
    )
