"""A layer whose data lies elsewhere: in memory, behind a store that is as slow and as wrong as a test wants it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dsec.store.build import build_layer
from dsec.store.digest import LAYER_GENERATION
from dsec.store.loading.base import Deliver, FetchCost
from dsec.store.records import DATA_NAME, METADATA_NAME, RECORD_NAME, RECORD_SCHEMA, LayerFile, LayerRecord
from dsec.store.sources import DirectorySource

Fault = Callable[[int], bytes | Exception | None]
"""(chunk) → what the store gives instead; None: what it should."""


@dataclass
class DistantLayer:
    record: LayerRecord
    data: bytes
    chunk_size: int
    hashes: dict[str, str]
    """Path → SHA-256 of each file."""

    @property
    def chunks(self) -> int:
        return -(-len(self.data) // self.chunk_size)


def write_files(root: Path, seed: int, files: int, most: int) -> dict[str, str]:
    random_bytes = random.Random(seed)
    hashes = {}
    for number in range(files):
        path = root / f"d{number % 7}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = random_bytes.randbytes(random_bytes.choice((17, 5000, 70_000, most)))
        path.write_bytes(content)
        hashes[str(path.relative_to(root))] = hashlib.sha256(content).hexdigest()
    return hashes


def make_distant(directory: Path, *, seed: int = 1, files: int = 60, most: int = 900_000) -> DistantLayer:
    """A layer's directory below `directory`/layers, without the data."""
    tree = directory / f"tree{seed}"
    hashes = write_files(tree, seed, files, most)
    built = build_layer(DirectorySource(tree), directory, f"built{seed}")
    home = directory / "layers" / built.layer_digest.removeprefix("sha256:")
    home.mkdir(parents=True)
    os.rename(built.metadata_path, home / METADATA_NAME)
    data = Path(built.data_path).read_bytes()
    os.unlink(built.data_path)
    file = LayerFile(
        RECORD_SCHEMA,
        LAYER_GENERATION,
        built.layer_digest,
        built.metadata_digest,
        built.metadata_size,
        built.data_size,
        built.chunk_size,
        b"".join(built.chunk_digests),
        built.files,
    )
    (home / RECORD_NAME).write_bytes(msgspec.json.encode(file))
    (home / "remote.json").write_text("{}")
    record = LayerRecord(
        built.layer_digest,
        str(home / METADATA_NAME),
        str(home / DATA_NAME),
        built.metadata_size,
        built.data_size,
        built.files,
        built.metadata_digest.hex(),
    )
    return DistantLayer(record, data, built.chunk_size, hashes)


@dataclass
class MemoryStore:
    """`Sources` of distant layers."""

    layers: dict[str, DistantLayer] = field(default_factory=dict)
    delay_s: float = 0.0
    fault: Fault | None = None
    fetched: Counter[int] = field(default_factory=Counter)
    """Chunk → how often it was asked for, of all layers."""
    raw: dict[str, str] = field(default_factory=dict)
    """Digest → its data file, where the store is a directory."""

    def add(self, layer: DistantLayer) -> DistantLayer:
        self.layers[layer.record.digest] = layer
        return layer

    def locate(self, digest: str) -> LayerRecord:
        return self.layers[digest].record

    def open_source(self, layer: LayerRecord) -> MemorySource:
        return MemorySource(self, self.layers[layer.digest])

    def location(self, layer: LayerRecord) -> str | None:
        return self.raw.get(layer.digest)


class MemorySource:
    def __init__(self, store: MemoryStore, layer: DistantLayer) -> None:
        self._store, self._layer = store, layer
        self.chunk_size, self.chunks = layer.chunk_size, layer.chunks

    async def fetch(self, first: int, count: int, deliver: Deliver) -> FetchCost:
        if self._store.delay_s:
            await asyncio.sleep(self._store.delay_s)
        for chunk in range(first, first + count):
            self._store.fetched[chunk] += 1
            data = self._layer.data[chunk * self.chunk_size : (chunk + 1) * self.chunk_size]
            given = self._store.fault(chunk) if self._store.fault is not None else None
            if isinstance(given, Exception):
                raise given
            await asyncio.to_thread(deliver, chunk, data if given is None else given)
        return FetchCost(1, count * self.chunk_size)
