"""How chunks are asked for: neighbours together, other packs apart, and nothing after a cancel."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from published import CHUNK, data_of, node, noise, objects_in, open_impatient, put_image, quiet, read_chunks

from dsec.store.remote.source import GAP_BYTES, REQUEST_BYTES


def nothing(chunk: int, content: bytes) -> None:
    """Taken."""


async def test_neighbours_come_in_one_request(tmp_path: Path) -> None:
    objects = open_impatient("memory:///")
    with node(tmp_path / "a", objects) as (local, shared):
        chunks = [noise(number) for number in range(40)]
        put_image(local, "app:v1", b"".join(chunks))
        await shared.publish("app:v1", quiet)
        local.remove("app:v1", lambda _: False)
        layer = (await shared.resolve("app:v1")).layers[0]
        source = shared.open_source(layer)
        per_request = REQUEST_BYTES // CHUNK
        assert await source.fetch(0, per_request, nothing) == (1, REQUEST_BYTES)
        assert await source.fetch(3, per_request, nothing) == (1, REQUEST_BYTES)
        assert await source.fetch(0, 40, nothing) == (3, 40 * CHUNK)
        assert await source.fetch(39, 1, nothing) == (1, CHUNK)


async def test_small_gaps_are_read_over_and_large_ones_are_not(tmp_path: Path) -> None:
    small, large = b"a" * CHUNK, noise(50)
    objects = open_impatient("memory:///")
    with node(tmp_path / "a", objects) as (local, shared), node(tmp_path / "b", objects) as (_, reader):
        put_image(local, "first:1", noise(1) + small + noise(2) + large + noise(3))
        await shared.publish("first:1", quiet)
        # of the first's pack it has all but the small chunk, then all but the large one
        for ref, data, requests in (
            ("over:1", noise(1) + noise(2), 1),
            ("around:1", noise(2) + noise(3), 2),
            ("back:1", noise(2) + noise(1), 1),
            ("twice:1", noise(2) + noise(2), 1),
        ):
            layer = put_image(local, ref, data).layers[0]
            assert (await shared.publish(ref, quiet)).chunks_new == 0
            found = (await reader.resolve(ref)).layers[0]
            cost = await reader.open_source(found).fetch(0, 2, nothing)
            assert cost.requests == requests, ref
            assert cost.bytes <= 2 * CHUNK + GAP_BYTES
            assert await read_chunks(reader, found) == data_of(layer)


async def test_a_layer_of_many_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsec.store.remote.packing.PACK_BYTES", 3 * CHUNK)
    objects = open_impatient(str(tmp_path / "shared"))
    with node(tmp_path / "a", objects) as (local, shared), node(tmp_path / "b", objects) as (_, reader):
        data = b"".join(noise(number) + bytes(CHUNK) for number in range(10)) + b"end"
        layer = put_image(local, "app:v1", data).layers[0]
        assert (await shared.publish("app:v1", quiet)).chunks_new == 11
        packs = [size for name, size in objects_in(tmp_path / "shared").items() if name.startswith("packs")]
        assert len(packs) == 4
        assert max(packs) <= 3 * CHUNK
        found = (await reader.resolve("app:v1")).layers[0]
        assert await read_chunks(reader, found) == data_of(layer)
        assert (await reader.open_source(found).fetch(0, 21, nothing)).requests == 4
        again = put_image(local, "app:v2", data[CHUNK:]).layers[0]
        assert (await shared.publish("app:v2", quiet)).chunks_new == 0
        assert await read_chunks(reader, (await reader.resolve("app:v2")).layers[0]) == data_of(again)


async def test_nothing_is_delivered_after_a_cancel(tmp_path: Path) -> None:
    objects = open_impatient("memory:///")
    with node(tmp_path / "a", objects) as (local, shared), node(tmp_path / "b", objects) as (_, reader):
        put_image(local, "app:v1", b"".join(noise(number) for number in range(40)))
        await shared.publish("app:v1", quiet)
        source = reader.open_source((await reader.resolve("app:v1")).layers[0])
        loop = asyncio.get_running_loop()
        begun, go_on = asyncio.Event(), threading.Event()
        delivered: list[int] = []
        ended = False

        def deliver(chunk: int, content: bytes) -> None:
            assert not ended
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(30)
            delivered.append(chunk)

        fetching = asyncio.ensure_future(source.fetch(0, 40, deliver))
        await begun.wait()
        fetching.cancel()
        await asyncio.sleep(0)
        assert not fetching.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        ended = True
        assert delivered
