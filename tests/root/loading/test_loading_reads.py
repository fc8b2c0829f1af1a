"""Layers whose data comes when it is read: every byte right, each chunk asked for once, and an error where it cannot be
had."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from distant import MemorySource
from loading_rig import Rig, hash_of, map_hash, read_hash, start_read

from dsec.linux import KernelError
from dsec.linux.mounts import attach, umount
from dsec.store.loading import loader, precontent, present
from dsec.store.loading.base import Deliver, FetchCost
from dsec.store.loading.bounds import Bounds
from dsec.store.loading.cache import is_whole
from libdsec.protocol.errors import CapacityError, IntegrityError, UnavailableError

pytestmark = pytest.mark.needs("root", "erofs-from-files", "pre-content")


def test_every_file_is_right_however_it_is_read(rig: Rig) -> None:
    layer = rig.layer()
    files = list(layer.hashes)
    random.Random(4).shuffle(files)
    with rig.loader() as loader, rig.mounted(loader, layer.record) as root:
        assert loader.stats(layer.record).source == "pre-content"
        for number, path in enumerate(files[:6]):
            assert map_hash(root / path, number) == layer.hashes[path]
        with ThreadPoolExecutor(4) as readers:
            found = list(readers.map(lambda path: read_hash(root / path), files))
        assert found == [layer.hashes[path] for path in files]
        assert set(rig.store.fetched.values()) == {1}
    assert not descriptors_of(layer.record.directory)


def test_a_layer_that_is_whole_raises_no_events_and_costs_nothing(rig: Rig) -> None:
    layer = rig.layer(files=20)
    with rig.loader() as loader:
        loader.fetch_all([layer.record], lambda _: None)
        assert Path(layer.record.data).read_bytes() == layer.data
        assert is_whole(layer.record)
        fetched = rig.store.fetched.total()
        with rig.mounted(loader, layer.record) as root:
            assert marks(rig) == 0
            assert loader.evict(layer.record) is None
            for path, wanted in layer.hashes.items():
                assert read_hash(root / path) == wanted
        assert rig.store.fetched.total() == fetched == layer.chunks
        rig.kept.add(layer.record.digest)
        assert loader.evict(layer.record) is None
        assert is_whole(layer.record)
        rig.kept.clear()
        assert loader.evict(layer.record) is not None
        assert not is_whole(layer.record)
        assert not Path(layer.record.data).exists()


def test_what_is_there_is_read_though_the_loop_has_other_work(rig: Rig) -> None:
    layer = rig.layer(files=25)
    path = next(iter(layer.hashes))
    with rig.loader() as loader:
        with rig.mounted(loader, layer.record) as root:
            assert read_hash(root / path) == layer.hashes[path]
        assert 0 < loader.stats(layer.record).present_bytes < layer.record.data_bytes
        # another mount has no page cache yet
        with rig.mounted(loader, layer.record) as root:
            gate, opened = threading.Event(), Future[bool]()
            loader._thread.loop.call_soon_threadsafe(lambda: opened.set_result(gate.wait(30)))
            found = read_hash(root / path)
            gate.set()
            assert opened.result(30), "the read waited for the loop"
            assert found == layer.hashes[path]


def test_a_hundred_readers_of_one_chunk_cost_one_fetch(rig: Rig) -> None:
    layer = rig.layer(files=3, most=3_000_000)
    rig.store.delay_s = 0.2
    path = max(layer.hashes, key=lambda path: (rig.directory / "tree1" / path).stat().st_size)
    with rig.loader() as loader, rig.mounted(loader, layer.record) as root:
        readers = [start_read(root / path) for _ in range(100)]
        assert {hash_of(reader) for reader in readers} == {layer.hashes[path]}
        assert set(rig.store.fetched.values()) == {1}


def test_a_layer_without_contents_is_whole_at_once(rig: Rig) -> None:
    (rig.directory / "tree1" / "empty").mkdir(parents=True)
    layer = rig.layer(files=0)
    with rig.loader() as loader, rig.mounted(loader, layer.record) as root:
        assert os.listdir(root) == ["empty"]
        assert is_whole(layer.record) or layer.data


def test_a_store_that_fails_once_costs_a_moment(rig: Rig) -> None:
    layer = rig.layer(files=8)
    failed: set[int] = set()

    def once(chunk: int) -> Exception | None:
        if chunk in failed:
            return None
        failed.add(chunk)
        return UnavailableError("cannot reach the store")

    rig.store.fault = once
    with rig.loader() as loader, rig.mounted(loader, layer.record) as root:
        for path, wanted in layer.hashes.items():
            assert read_hash(root / path) == wanted
        assert loader.stats(layer.record).errors == 0


@pytest.mark.parametrize("fault", ["away", "slow", "damaged", "short", "missing"])
def test_what_cannot_be_had_is_an_error_until_it_can(rig: Rig, fault: str) -> None:
    layer = rig.layer(files=3)
    faults = {
        "away": UnavailableError("cannot reach the store"),
        "damaged": bytes(layer.chunk_size),
        "short": b"short",
        "missing": IntegrityError("cannot find an object"),
    }
    rig.store.fault = lambda _: faults.get(fault)
    if fault == "slow":
        rig.store.delay_s = 60
    bounds = Bounds(read_deadline_s=0.2, fetch_deadline_s=5)
    with rig.loader(bounds=bounds) as loader, rig.mounted(loader, layer.record) as root:
        for path in layer.hashes:
            assert "Input/output error" in read_hash(root / path)
        assert loader.stats(layer.record).errors > 0
        rig.store.fault, rig.store.delay_s = None, 0
        if fault == "slow":
            loader.unmounted(layer.record.digest)  # what is asked for already is as slow as it was
            return
        for path, wanted in layer.hashes.items():
            assert read_hash(root / path) == wanted


def test_a_damaged_chunk_costs_its_neighbours_nothing(rig: Rig) -> None:
    layer = rig.layer(files=4, most=3_000_000)
    bad = layer.chunks // 2
    rig.store.fault = lambda chunk: b"lie" if chunk == bad else None
    with rig.loader() as loader, rig.mounted(loader, layer.record) as root:
        found = {path: read_hash(root / path) for path in layer.hashes}
        wrong = [path for path, wanted in layer.hashes.items() if found[path] != wanted]
        assert wrong
        assert all("Input/output error" in found[path] for path in wrong)
        with pytest.raises(IntegrityError):
            loader.fetch_all([layer.record], lambda _: None)
        assert loader.stats(layer.record).present_bytes >= len(layer.data) - 2 * layer.chunk_size
        rig.store.fault = None
        loader.fetch_all([layer.record], lambda _: None)
        for path, wanted in layer.hashes.items():
            assert read_hash(root / path) == wanted


def test_chunks_that_come_twice_late_unasked_or_not_at_all(rig: Rig) -> None:
    layer = rig.layer(files=25)
    forgotten: set[int] = set()

    class Odd(MemorySource):
        async def fetch(self, first: int, count: int, deliver: Deliver) -> FetchCost:
            for chunk in reversed(range(first, first + count)):
                if chunk % 3 == 0 and chunk not in forgotten:
                    forgotten.add(chunk)
                    continue
                data = layer.data[chunk * self.chunk_size : (chunk + 1) * self.chunk_size]
                deliver((chunk + 1) % self.chunks, data)
                deliver(self.chunks + 7, data)
                deliver(chunk, data)
                deliver(chunk, bytes(len(data)))
                threading.Timer(0.05, deliver, (chunk, bytes(len(data)))).start()
            return FetchCost(1, 0)

    rig.store.open_source = lambda _: Odd(rig.store, layer)  # type: ignore[method-assign]
    with rig.loader() as loader, rig.mounted(loader, layer.record) as root:
        assert {path: read_hash(root / path) for path in layer.hashes} == layer.hashes
        loader.fetch_all([layer.record], lambda _: None)
    assert Path(layer.record.data).read_bytes() == layer.data


def test_a_hot_layer_does_not_delay_another(rig: Rig) -> None:
    hot, other = rig.layer(files=4, most=6_000_000), rig.layer(seed=2, files=2)
    gate = threading.Event()
    hot_digest = hot.record.digest
    original = rig.store.open_source

    def gated(layer: object) -> object:
        source = original(layer)  # type: ignore[arg-type]
        if layer.digest == hot_digest:  # type: ignore[attr-defined]
            fetch = source.fetch

            async def wait(*arguments: object) -> object:
                import asyncio

                await asyncio.to_thread(gate.wait, 20)
                return await fetch(*arguments)  # type: ignore[arg-type]

            source.fetch = wait  # type: ignore[method-assign,assignment]
        return source

    rig.store.open_source = gated  # type: ignore[method-assign,assignment]
    with (
        rig.loader() as loader,
        rig.mounted(loader, hot.record) as hot_root,
        rig.mounted(loader, other.record) as other_root,
    ):
        readers = {path: start_read(hot_root / path) for path in hot.hashes}
        try:
            for path, wanted in other.hashes.items():
                assert read_hash(other_root / path) == wanted
        finally:
            gate.set()
        assert {path: hash_of(reader) for path, reader in readers.items()} == hot.hashes


def test_a_disk_that_fills_up_is_an_error_and_never_zeros(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = rig.layer(files=6)
    full = threading.Event()
    full.set()
    write = os.pwrite

    def pwrite(descriptor: int, data: bytes, at: int) -> int:
        if full.is_set() and len(data) > 4096:
            raise OSError(28, "No space left on device")
        return write(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with rig.loader() as loader, rig.mounted(loader, layer.record) as root:
        for path in layer.hashes:
            assert "Input/output error" in read_hash(root / path)
        with pytest.raises(CapacityError):
            loader.fetch_all([layer.record], lambda _: None)
        full.clear()
        for path, wanted in layer.hashes.items():
            assert read_hash(root / path) == wanted


def test_a_start_is_traced_and_the_next_one_fetched_ahead_of_it(rig: Rig) -> None:
    layer = rig.layer(files=30)
    few = list(layer.hashes)[::9]
    with rig.loader() as loader, rig.mounted(loader, layer.record) as root:
        for path in few:
            read_hash(root / path)
    trace = Path(layer.record.directory, "trace.chunks").read_bytes()
    assert 0 < len(trace) // 4 <= layer.chunks
    with rig.loader() as loader:
        assert loader.evict(layer.record) is not None
        waited = loader.stats(layer.record).reads_waited
        with rig.mounted(loader, layer.record) as root:
            while loader.stats(layer.record).present_bytes < len(trace) // 4 * layer.chunk_size - layer.chunk_size:
                threading.Event().wait(0.01)
            for path in few:
                assert read_hash(root / path) == layer.hashes[path]
            assert loader.stats(layer.record).reads_waited == waited


def test_the_ways_that_are_forced(rig: Rig) -> None:
    layer = rig.layer(files=10)
    with rig.loader("direct") as loader, pytest.raises(UnavailableError):
        loader.mount(layer.record)
    raw = rig.directory / "raw"
    raw.write_bytes(layer.data)
    rig.store.raw[layer.record.digest] = str(raw)
    with rig.loader() as loader, rig.mounted(loader, layer.record) as root:
        assert loader.stats(layer.record).source == "direct"
        assert {path: read_hash(root / path) for path in layer.hashes} == layer.hashes
    assert not rig.store.fetched
    raw.write_bytes(layer.data[:-1])
    with rig.loader("direct") as loader, pytest.raises(IntegrityError):
        loader.mount(layer.record)
    with rig.loader("prefetch", group=False) as loader, rig.mounted(loader, layer.record) as root:
        assert loader.stats(layer.record).source == "prefetch"
        assert {path: read_hash(root / path) for path in layer.hashes} == layer.hashes
        assert rig.store.fetched.total() == layer.chunks


def test_what_a_loss_of_power_took_is_fetched_anew(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = rig.layer(files=30)
    with rig.loader() as loader, rig.mounted(loader, layer.record) as root:
        for path in list(layer.hashes)[:12]:
            read_hash(root / path)
        there = loader.stats(layer.record).present_bytes
    assert 0 < there < len(layer.data)
    with rig.loader() as loader:
        assert loader.stats(layer.record).present_bytes == there
    with open(layer.record.data, "r+b") as data:
        # the map had reached the disk, and some of the data had not
        for chunk in range(0, layer.chunks, 2):
            data.seek(chunk * layer.chunk_size)
            data.write(bytes(4096))
    monkeypatch.setattr(present, "boot_id", lambda: bytes(16))
    with rig.loader() as loader, rig.mounted(loader, layer.record) as root:
        assert 0 < loader.stats(layer.record).present_bytes < there
        assert {path: read_hash(root / path) for path in layer.hashes} == layer.hashes


def test_what_is_damaged_on_the_disk_is_found_and_fetched_anew(rig: Rig) -> None:
    layer = rig.layer(files=30)
    with rig.loader() as loader:
        with rig.mounted(loader, layer.record) as root:
            read_hash(root / next(iter(layer.hashes)))
        loader.verify(layer.record)
        data = Path(layer.record.data)
        data.write_bytes(bytes(len(layer.data)))
        with pytest.raises(IntegrityError, match="chunk"):
            loader.verify(layer.record)
        loader.verify(layer.record)
        with rig.mounted(loader, layer.record) as root:
            assert {path: read_hash(root / path) for path in layer.hashes} == layer.hashes


def test_what_is_found_damaged_before_the_layer_is_whole_is_not_vouched_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = rig.layer(files=6)
    finishing: list[Callable[[], None]] = []
    with rig.loader() as loader, rig.mounted(loader, layer.record) as root:
        with monkeypatch.context() as patch:
            patch.setattr(loader._opened, "_in_background", finishing.append)
            for path in layer.hashes:
                assert read_hash(root / path) == layer.hashes[path]
            opened = loader._opened.get(layer.record.digest)
            assert opened is not None
            for chunk in opened.cache.present.absent():
                opened.cache.put(chunk, layer.data[chunk * layer.chunk_size : (chunk + 1) * layer.chunk_size])
            os.pwrite(opened.cache.writer, b"damage", 0)
            with pytest.raises(IntegrityError):
                loader.verify(layer.record)
        finishing.append(lambda: loader._opened._finish(opened))
        for finish in finishing:
            finish()
        assert not is_whole(layer.record)
        loader.fetch_all([layer.record], lambda _: None)
        assert is_whole(layer.record)
        loader.verify(layer.record)


def test_a_fetch_ends_when_its_caller_wants_no_more(rig: Rig) -> None:
    layer = rig.layer(files=10)
    rig.store.delay_s = 0.5

    class EnoughError(Exception):
        pass

    def stop(_: int) -> None:
        raise EnoughError

    with rig.loader() as loader:
        with pytest.raises(EnoughError):
            loader.fetch_all([layer.record], stop)
        assert not descriptors_of(layer.record.directory)
        rig.store.delay_s = 0
        loader.fetch_all([layer.record], lambda _: None)
        assert Path(layer.record.data).read_bytes() == layer.data


def descriptors_of(directory: str) -> list[str]:
    """Files below it that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
        if path.startswith(directory):
            found.append(path)
    return found


def marks(rig: Rig) -> int:
    return Path(f"/proc/self/fdinfo/{rig.group}").read_text().count("fanotify ino:")


def test_more_readers_than_may_wait_at_once_wait_in_the_kernel(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precontent, "MAX_WAITING", 3)
    layer, other = rig.layer(files=30), rig.layer(seed=2, files=3)
    rig.store.delay_s = 0.02
    with (
        rig.loader() as loader,
        rig.mounted(loader, layer.record) as root,
        rig.mounted(loader, other.record) as other_root,
    ):
        readers = {path: start_read(root / path) for path in layer.hashes}
        assert {path: read_hash(other_root / path) for path in other.hashes} == other.hashes
        assert {path: hash_of(reader) for path, reader in readers.items()} == layer.hashes


def test_more_readers_than_may_wait_at_once_wait_for_the_next_process(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precontent, "MAX_WAITING", 3)
    layer = rig.layer(files=30)
    root = rig.directory / "adopted"
    root.mkdir()
    with rig.loader() as first:
        mount = first.mount(layer.record)
        attach(mount, str(root))
        os.close(mount)
    try:
        readers = {path: start_read(root / path) for path in layer.hashes}
        with rig.loader(fresh=False) as second:
            second.adopt(layer.record.digest)
            assert {path: hash_of(reader) for path, reader in readers.items()} == layer.hashes
    finally:
        umount(str(root))


def test_a_layer_that_is_let_go_of_while_it_is_fetched_writes_nothing_more(rig: Rig) -> None:
    layer = rig.layer(files=40)
    rig.store.delay_s = 0.02
    with rig.loader() as loader:
        for _ in range(5):
            with rig.mounted(loader, layer.record) as root:
                readers = [start_read(root / path) for path in list(layer.hashes)[:8]]
                threading.Event().wait(0.02)
                for reader in readers:
                    reader.kill()
                    hash_of(reader)
            assert not descriptors_of(layer.record.directory)
        rig.store.delay_s = 0
        with rig.mounted(loader, layer.record) as root:
            assert {path: read_hash(root / path) for path in layer.hashes} == layer.hashes


@pytest.mark.parametrize("work", ["verify", "fetch", "mount"])
def test_what_an_earlier_process_mounted_stays_marked_whatever_ends(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    layer = rig.layer(files=6)
    root = rig.directory / "adopted"
    root.mkdir()
    with rig.loader() as first:
        mount = first.mount(layer.record)
        attach(mount, str(root))
        os.close(mount)
    try:
        with rig.loader(fresh=False) as second:
            second.adopt(layer.record.digest)
            if work == "verify":
                second.verify(layer.record)
            elif work == "fetch":
                rig.store.fault = lambda chunk: IntegrityError("wrong")
                with pytest.raises(IntegrityError):
                    second.fetch_all([layer.record], lambda _: None)
                rig.store.fault = None
            else:
                # another fork server wants one of its own, and does not get it
                monkeypatch.setattr(loader, "mount_erofs", refuse_mount)
                with pytest.raises(IntegrityError):
                    second.mount(layer.record)
            assert marks(rig) == 1
            assert {path: read_hash(root / path) for path in layer.hashes} == layer.hashes
    finally:
        umount(str(root))


def refuse_mount(*_: object, **__: object) -> int:
    raise KernelError(errno.EINVAL, "mount", "a layer")


def test_readers_that_are_killed_leave_nothing(rig: Rig) -> None:
    layer = rig.layer(files=20)
    rig.store.delay_s = 0.3
    before = len(os.listdir("/proc/self/fd"))
    with rig.loader() as loader, rig.mounted(loader, layer.record) as root:
        readers = [start_read(root / path) for path in layer.hashes]
        threading.Event().wait(0.1)
        for reader in readers:
            reader.kill()
            hash_of(reader)
        rig.store.delay_s = 0
        assert {path: read_hash(root / path) for path in layer.hashes} == layer.hashes
    assert len(os.listdir("/proc/self/fd")) == before
    assert marks(rig) == 0


class NoKeeper:
    async def hold(self, key: str, descriptor: int) -> None:
        raise AssertionError("there is nothing to be held")

    async def take(self, key: str) -> int | None:
        return None


def test_a_file_system_without_events_has_its_layers_fetched(rig: Rig) -> None:
    layer = rig.layer(files=2)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        rig.graves = Path(memory)
        with rig.loader(group=False) as loader:
            asyncio.run(loader.attach(NoKeeper()))
            assert loader.stats(layer.record).source == "prefetch"
            assert os.listdir(memory) == []
            with rig.mounted(loader, layer.record) as root:
                assert {path: read_hash(root / path) for path in layer.hashes} == layer.hashes
