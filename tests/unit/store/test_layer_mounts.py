"""Layers are mounted once, counted, kept while they may be wanted, and never lost track of."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dsec.drivers.container.taken import Taken
from dsec.store.mounts import LayerMounts
from dsec.store.records import LayerRecord
from libdsec.protocol.errors import ConflictError, ImageNotFoundError, IntegrityError

DIGEST = "sha256:one"


class Machine:
    """A fork server and a kernel: what is held, and how often was mounted."""

    def __init__(self, max_idle: int = 2) -> None:
        self.held: dict[str, None] = {}
        self.mounted = 0
        self.busy: set[str] = set()
        self.descriptors: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.ended: list[str] = []
        self.adopted: list[str] = []
        self.layers = LayerMounts(
            self.hold,
            self.drop,
            self.locate,
            max_idle=max_idle,
            mount=self.mount,
            adopted=self.adopted.append,
            unmounted=self.ended.append,
        )

    async def hold(self, key: str, descriptor: int) -> None:
        os.fstat(descriptor)
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.held[key] = None

    async def drop(self, key: str) -> None:
        await asyncio.sleep(0)
        if key in self.busy:
            raise ConflictError("a sandbox made from it runs")
        del self.held[key]

    def locate(self, digest: str) -> LayerRecord:
        if digest == "sha256:none":
            raise ImageNotFoundError("no such layer")
        return LayerRecord(digest, "", "", 0, 0, 0, "")

    def mount(self, layer: LayerRecord) -> int:
        self.gate.wait(30)
        self.mounted += 1
        if layer.digest == "sha256:broken":
            raise IntegrityError("broken")
        descriptor = os.memfd_create("mount")
        self.descriptors.append(descriptor)
        return descriptor

    def open_descriptors(self) -> int:
        return sum(os.path.exists(f"/proc/self/fd/{descriptor}") for descriptor in set(self.descriptors))


def run(story: Callable[[Machine], Awaitable[None]], **options: int) -> None:
    machine = Machine(**options)
    asyncio.run(asyncio.wait_for(story(machine), 30))
    assert machine.open_descriptors() == 0


def test_a_hundred_at_once_mount_once() -> None:
    async def story(machine: Machine) -> None:
        await asyncio.gather(*(machine.layers.acquire(DIGEST) for _ in range(100)))
        assert (machine.mounted, list(machine.held)) == (1, [DIGEST])
        for _ in range(99):
            await machine.layers.release(DIGEST)
        assert machine.layers.in_use(DIGEST)
        await machine.layers.release(DIGEST)
        assert not machine.layers.in_use(DIGEST)
        await machine.layers.acquire(DIGEST)
        assert machine.mounted == 1

    run(story)


def test_the_layers_of_a_sandbox_are_in_use_before_the_first_is_mounted() -> None:
    async def story(machine: Machine) -> None:
        machine.gate.clear()
        not_asked: Any = None
        taken = Taken(machine.layers, not_asked, not_asked)
        making = asyncio.create_task(taken.hold(("sha256:slow", DIGEST)))
        await asyncio.sleep(0)
        assert machine.layers.in_use(DIGEST)
        assert not await machine.layers.forget(DIGEST)
        machine.gate.set()
        await making
        await taken.give_back()
        assert not machine.layers.in_use(DIGEST)
        # one of them failed: what was only claimed is given back as well
        with pytest.raises(IntegrityError):
            await taken.hold(("sha256:broken", "sha256:never"))
        await taken.give_back()
        assert machine.layers.used() == ()

    run(story)


def test_different_layers_do_not_wait_for_each_other() -> None:
    async def story(machine: Machine) -> None:
        machine.gate.clear()
        slow = asyncio.create_task(machine.layers.acquire("sha256:slow"))
        await asyncio.sleep(0)
        machine.layers.adopt(["sha256:there"])
        await machine.layers.acquire("sha256:there")
        assert not slow.done()
        machine.gate.set()
        await slow

    run(story)


def test_a_failure_reaches_everyone_and_leaves_nothing() -> None:
    async def story(machine: Machine) -> None:
        outcomes = await asyncio.gather(
            *(machine.layers.acquire("sha256:broken") for _ in range(5)), return_exceptions=True
        )
        assert all(isinstance(outcome, IntegrityError) for outcome in outcomes)
        assert not machine.layers.in_use("sha256:broken")
        with pytest.raises(ImageNotFoundError):
            await machine.layers.acquire("sha256:none")
        machine.failure = ConnectionResetError("the fork server is gone")
        with pytest.raises(ConnectionResetError):
            await machine.layers.acquire(DIGEST)
        machine.failure = None
        await machine.layers.acquire(DIGEST)
        assert list(machine.held) == [DIGEST]

    run(story)


def test_a_cancelled_mount_is_closed_and_the_next_waiter_goes_on() -> None:
    async def story(machine: Machine) -> None:
        machine.gate.clear()
        first = asyncio.create_task(machine.layers.acquire(DIGEST))
        second = asyncio.create_task(machine.layers.acquire(DIGEST))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled()
        machine.gate.set()
        await second
        assert machine.layers.in_use(DIGEST)
        await machine.layers.release(DIGEST)
        assert not machine.layers.in_use(DIGEST)

    run(story)


def test_a_waiter_that_is_cancelled_does_not_count() -> None:
    async def story(machine: Machine) -> None:
        machine.gate.clear()
        first = asyncio.create_task(machine.layers.acquire(DIGEST))
        second = asyncio.create_task(machine.layers.acquire(DIGEST))
        await asyncio.sleep(0)
        second.cancel()
        machine.gate.set()
        await asyncio.gather(first, second, return_exceptions=True)
        await machine.layers.release(DIGEST)
        assert not machine.layers.in_use(DIGEST)

    run(story)


def test_unused_layers_are_kept_up_to_a_bound_the_oldest_goes_first() -> None:
    async def story(machine: Machine) -> None:
        digests = [f"sha256:{number}" for number in range(4)]
        for digest in digests:
            await machine.layers.acquire(digest)
        assert list(machine.held) == digests
        for digest in digests:
            await machine.layers.release(digest)
        assert list(machine.held) == digests[2:]
        await machine.layers.acquire(digests[0])
        assert machine.mounted == 5

    run(story, max_idle=2)


def test_a_layer_that_the_fork_server_still_needs_stays() -> None:
    async def story(machine: Machine) -> None:
        await machine.layers.acquire(DIGEST)
        machine.busy.add(DIGEST)
        await machine.layers.release(DIGEST)
        assert list(machine.held) == [DIGEST]
        assert not await machine.layers.forget(DIGEST)
        machine.busy.clear()
        assert await machine.layers.forget(DIGEST)
        assert machine.held == {}
        assert await machine.layers.forget(DIGEST)

    run(story, max_idle=0)


def test_an_acquire_during_a_drop_mounts_again() -> None:
    async def story(machine: Machine) -> None:
        await machine.layers.acquire(DIGEST)
        await machine.layers.release(DIGEST)
        dropping = asyncio.create_task(machine.layers.forget(DIGEST))
        await asyncio.sleep(0)
        await machine.layers.acquire(DIGEST)
        assert await dropping
        assert list(machine.held) == [DIGEST]
        assert machine.mounted == 2

    run(story)


def test_what_is_used_is_not_forgotten() -> None:
    async def story(machine: Machine) -> None:
        await machine.layers.acquire(DIGEST)
        assert not await machine.layers.forget(DIGEST)
        assert list(machine.held) == [DIGEST]

    run(story)


def test_mounts_that_take_long_leave_others_their_threads() -> None:
    async def story(machine: Machine) -> None:
        machine.gate.clear()
        slow = [asyncio.create_task(machine.layers.acquire(f"sha256:{number}")) for number in range(40)]
        await asyncio.sleep(0)
        try:
            assert await asyncio.wait_for(asyncio.to_thread(int), 10) == 0
        finally:
            machine.gate.set()
            await asyncio.gather(*slow)
        assert len(machine.held) == len(machine.descriptors) == 40

    run(story)


def test_a_restarted_edge_counts_what_runs() -> None:
    async def story(machine: Machine) -> None:
        machine.held = {DIGEST: None, "sha256:idle": None}
        machine.layers.adopt(machine.held)
        machine.layers.use(DIGEST)
        assert machine.layers.in_use(DIGEST)
        assert not machine.layers.in_use("sha256:idle")
        machine.layers.use("sha256:gone")  # that fork server has died; who has its mount has not
        assert set(machine.adopted) == {DIGEST, "sha256:idle", "sha256:gone"}
        await machine.layers.acquire(DIGEST)
        assert machine.mounted == 0
        for _ in range(2):
            await machine.layers.release(DIGEST)
        assert not machine.layers.in_use(DIGEST)

    run(story)


def test_what_a_lost_fork_server_held_is_mounted_by_the_next_use() -> None:
    async def story(machine: Machine) -> None:
        machine.layers.adopt([DIGEST, "sha256:idle"])
        machine.layers.use(DIGEST)
        machine.layers.lost([DIGEST, "sha256:idle"])
        assert machine.layers.in_use(DIGEST)
        assert await machine.layers.forget("sha256:idle")
        await machine.layers.acquire(DIGEST)
        assert (machine.mounted, list(machine.held)) == (1, [DIGEST])
        for _ in range(2):
            await machine.layers.release(DIGEST)
        assert not machine.layers.in_use(DIGEST)

    run(story)


def test_a_removal_that_is_given_up_ends_no_mount_that_comes_after_it() -> None:
    async def story(machine: Machine) -> None:
        told, may = threading.Event(), threading.Event()
        events: list[str] = []

        def unmounted(digest: str) -> None:
            told.set()
            may.wait(10)
            events.append("ended")

        def mount(layer: LayerRecord) -> int:
            events.append("mounted")
            return machine.mount(layer)

        layers = LayerMounts(machine.hold, machine.drop, machine.locate, mount=mount, unmounted=unmounted)
        await layers.acquire(DIGEST)
        await layers.release(DIGEST)
        forgetting = asyncio.create_task(layers.forget(DIGEST))
        await asyncio.to_thread(told.wait, 10)
        forgetting.cancel()
        acquiring = asyncio.create_task(layers.acquire(DIGEST))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        may.set()
        await acquiring
        with pytest.raises(asyncio.CancelledError):
            await forgetting
        assert events == ["mounted", "ended", "mounted"]

    run(story)


def test_the_end_of_mounts_is_told_once_nobody_has_them() -> None:
    async def story(machine: Machine) -> None:
        for _ in range(2):
            await machine.layers.acquire(DIGEST)
        await machine.layers.release(DIGEST)
        assert not await machine.layers.forget(DIGEST)
        await machine.layers.release(DIGEST)
        assert machine.ended == []
        machine.busy.add(DIGEST)
        assert not await machine.layers.forget(DIGEST)
        assert machine.ended == []
        machine.busy.clear()
        assert await machine.layers.forget(DIGEST)
        assert machine.ended == [DIGEST]
        # mounts that went with a fork server, while a sandbox goes on over its own
        await machine.layers.acquire(DIGEST)
        machine.layers.lost([DIGEST])
        assert machine.ended == [DIGEST]
        await machine.layers.release(DIGEST)
        assert machine.ended == [DIGEST, DIGEST]

    run(story)


def test_releasing_more_than_was_acquired_is_the_caller_s_error() -> None:
    async def story(machine: Machine) -> None:
        with pytest.raises(RuntimeError, match="more often"):
            await machine.layers.release(DIGEST)

    run(story)
