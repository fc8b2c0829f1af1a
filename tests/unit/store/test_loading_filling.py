"""A layer that is being filled: readers come first, and wait for nobody who gives up."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from dsec.store.digest import LAYER_GENERATION, chunk_digest, layer_digest
from dsec.store.loading.base import Deliver, FetchCost
from dsec.store.loading.bounds import Bounds
from dsec.store.loading.cache import DataCache
from dsec.store.loading.counts import Counts
from dsec.store.loading.filling import Filling
from dsec.store.loading.turns import Turns
from dsec.store.records import RECORD_SCHEMA, LayerFile, LayerRecord
from libdsec.protocol.errors import IntegrityError

CHUNK = 4096
CHUNKS = 40


class Store:
    """A source that gives a chunk when it may."""

    chunk_size, chunks = CHUNK, CHUNKS

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.asked: list[tuple[int, int]] = []
        self.damaged: set[int] = set()
        self.may = [asyncio.Event() for _ in range(CHUNKS)]

    async def fetch(self, first: int, count: int, deliver: Deliver) -> FetchCost:
        self.asked.append((first, count))
        for chunk in range(first, first + count):
            await self.may[chunk].wait()
            if chunk in self.damaged:
                raise IntegrityError("damaged")
            deliver(chunk, self._data[chunk * CHUNK : (chunk + 1) * CHUNK])
        return FetchCost(1, count * CHUNK)

    def allow(self, *chunks: int) -> None:
        for chunk in chunks or range(CHUNKS):
            self.may[chunk].set()


def make_layer(home: Path, data: bytes) -> LayerRecord:
    metadata = hashlib.sha256(b"metadata").digest()
    digests = [chunk_digest(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)]
    digest = layer_digest(metadata, digests, chunk_size=CHUNK)
    file = LayerFile(RECORD_SCHEMA, LAYER_GENERATION, digest, metadata, 8, len(data), CHUNK, b"".join(digests), 1)
    (home / "layer.json").write_bytes(msgspec.json.encode(file))
    return LayerRecord(digest, str(home / "metadata.erofs"), str(home / "data.erofs"), 8, len(data), 1, metadata.hex())


@asynccontextmanager
async def filling(
    home: Path, bounds: Bounds
) -> AsyncIterator[tuple[Filling, Store, Callable[[int], asyncio.Future[int]]]]:
    """It, its store, and how somebody reads a chunk: a future of 0 or an errno."""
    loop = asyncio.get_running_loop()
    data = random.Random(5).randbytes(CHUNKS * CHUNK)
    store = Store(data)
    cache = DataCache.open(make_layer(home, data))
    cache.writer = os.open(cache.layer.data, os.O_RDWR | os.O_CLOEXEC)
    made = Filling(
        cache,
        store,
        turns=Turns(at_once=bounds.at_once, a_layer=bounds.a_layer, ahead=bounds.ahead),
        bounds=bounds,
        counts=Counts(str(home)),
        spawn=loop.create_task,
        on_complete=lambda: None,
    )

    def read(chunk: int) -> asyncio.Future[int]:
        answer: asyncio.Future[int] = loop.create_future()
        made.read(chunk * CHUNK, CHUNK, answer.set_result)
        return answer

    try:
        yield made, store, read
    finally:
        await made.close()
        cache.close()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_reader_does_not_wait_behind_what_nobody_waits_for(tmp_path: Path) -> None:
    async with filling(tmp_path, Bounds(first_window=0, most_window=0, ahead=1)) as (made, store, read):
        made.prefetch(0, 1)
        made.prefetch(10, 20)
        await settle()
        assert store.asked == [(0, 1)]
        answer = read(12)
        store.allow(12)
        assert await asyncio.wait_for(answer, 10) == 0
        assert store.asked == [(0, 1), (12, 1)]
        store.allow()
        await settle()
        assert store.asked[2:] == [(10, 2), (13, 7)]


@pytest.mark.parametrize("how", ["cancel", "damage"])
async def test_a_fetch_that_is_given_up_leaves_readers_what_they_wait_for(tmp_path: Path, how: str) -> None:
    async with filling(tmp_path, Bounds(first_window=0, most_window=0, read_deadline_s=60)) as (made, store, read):
        fetching = asyncio.get_running_loop().create_task(made.fill())
        await settle()
        answers = {chunk: read(chunk) for chunk in (5, 39)}
        if how == "cancel":
            fetching.cancel()
        else:
            store.damaged = {20}
            store.allow(*range(16, 32))
        with pytest.raises(asyncio.CancelledError if how == "cancel" else IntegrityError):
            await asyncio.wait_for(fetching, 10)
        store.allow()
        for answer in answers.values():
            assert await asyncio.wait_for(answer, 10) == 0


async def test_a_reader_that_cannot_be_answered_costs_the_others_nothing(tmp_path: Path) -> None:
    async with filling(tmp_path, Bounds(first_window=0, most_window=0)) as (made, store, read):

        def refuse(_: int) -> None:
            raise OSError(errno.EIO, "no answer")

        made.read(7 * CHUNK, CHUNK, refuse)
        answer = read(7)
        store.allow()
        assert await asyncio.wait_for(answer, 10) == 0


async def test_nothing_is_asked_for_once_it_is_closed(tmp_path: Path) -> None:
    async with filling(tmp_path, Bounds(first_window=0, most_window=0, ahead=1)) as (made, store, read):
        made.trace.earlier = (3, 9, 30)
        made.begin_start()
        await settle()
        answer = read(9)
        await made.close()
        assert await answer == errno.EIO
        asked = list(store.asked)
        store.allow()
        await settle()
        assert store.asked == asked
