"""The command log of a node, through a real socket over a fake driver: said again, joined, diverged, adopted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dsec.drivers.base import End, OnEnd, OnKnown, Order
from dsec.testing.fake_clock import FakeClock
from dsec.testing.fake_driver import FakeDriver, FakeInstance, Machine
from dsec.testing.fake_node import fake_node
from dsec.testing.wire_client import WireClient
from libdsec.protocol.errors import (
    ConflictError,
    DeadlineExceededError,
    LeaseLostError,
    OutcomeUnknownError,
    ReplayDivergedError,
    SandboxFailedError,
    SandboxStateError,
    UnavailableError,
    UnsupportedOperationError,
)
from libdsec.protocol.frames import Kind
from libdsec.protocol.steps import Step

IMAGE = {"image": "tiny:1"}


async def create(client: WireClient, **spec: object) -> str:
    info = await client.call("sandbox.create", spec={**IMAGE, **spec})
    return str(info["id"])


async def read_log(client: WireClient, scope: str, **options: Any) -> list[Step]:
    call = client.start("log.read", scope=scope, **options)
    answer = await call.answer()
    decoder = msgspec.msgpack.Decoder(tuple[Step, ...])
    steps: list[Step] = []
    rest = memoryview(call.stdout)
    unpacker = _arrays(bytes(rest))
    for array in unpacker:
        steps += decoder.decode(array)
    assert len(steps) == answer["steps"]
    return steps


def _arrays(data: bytes) -> list[bytes]:
    """The concatenated arrays of a log.read, one by one."""
    found = []
    while data:
        for end in range(1, len(data) + 1):
            try:
                msgspec.msgpack.decode(data[:end])
            except msgspec.DecodeError:
                continue
            found.append(data[:end])
            data = data[end:]
            break
    return found


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to that")


async def test_a_step_said_again_is_answered_from_the_log(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        calls = [client.step("main", 1, "exec", sandbox=sandbox, argv=["echo", "once"]) for _ in range(3)]
        answers = [await call.answer() for call in calls]
        assert answers[0] == answers[1] == answers[2]
        assert {call.stdout for call in calls} == {b"once\n"}
        again = client.step("main", 1, "exec", sandbox=sandbox, argv=["echo", "once"])
        assert (await again.answer(), again.stdout) == (answers[0], b"once\n")
        steps = await read_log(client, sandbox)
        assert [(step.track, step.n, step.method, step.state) for step in steps] == [
            ("create", 1, "sandbox.create", "result"),
            ("main", 1, "exec", "result"),
        ]


async def test_another_call_at_a_recorded_step_names_both(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        await client.step("main", 1, "exec", sandbox=sandbox, argv=["echo", "this"]).answer()
        with pytest.raises(ReplayDivergedError) as caught:
            await client.step("main", 1, "exec", sandbox=sandbox, argv=["echo", "that"]).answer()
        assert (caught.value.details["track"], caught.value.details["n"]) == ("main", 1)
        assert "this" in str(caught.value.details["expected"])
        assert "that" in str(caught.value.details["got"])


async def test_a_successor_hears_what_ran_when_its_predecessor_died(run_dir: str) -> None:
    machine: Machine = {}
    async with fake_node(run_dir, machine=machine) as first, first.client() as client:
        sandbox = await create(client)
        client.step("main", 1, "exec", sandbox=sandbox, argv=["sleep", "0.2"])
        await client.step("main", 2, "exec", sandbox=sandbox, argv=["echo", "done"]).answer()
        first.leave = True
        first.driver.crash()
    async with fake_node(run_dir, machine=machine) as second, second.client() as client:
        assert (await client.call("sandbox.inspect", sandbox=sandbox))["state"] == "running"
        joined = await client.step("main", 1, "exec", sandbox=sandbox, argv=["sleep", "0.2"]).answer()
        assert joined["exit_code"] == 0
        told = client.step("main", 2, "exec", sandbox=sandbox, argv=["echo", "done"])
        assert ((await told.answer())["exit_code"], told.stdout) == (0, b"done\n")
        assert (await client.run(sandbox, "echo", "on"))[1] == b"on\n"


async def test_what_ran_in_a_sandbox_that_is_gone_is_unknown(run_dir: str) -> None:
    machine: Machine = {}
    async with fake_node(run_dir, machine=machine) as first, first.client() as client:
        sandbox = await create(client, rollout="r")
        running = client.step("main/1", 1, "exec", sandbox=sandbox, argv=["sleep", "1000"])
        await client.step("main/1", 2, "exec", sandbox=sandbox, argv=["true"]).answer()
        assert running.inbox.empty()
        first.leave = True
        first.driver.crash()
    machine.clear()
    async with fake_node(run_dir, machine=machine) as second, second.client() as client:
        info = await client.call("sandbox.inspect", sandbox=sandbox)
        assert (info["state"], info["cause"]) == ("failed", "lost")
        with pytest.raises(OutcomeUnknownError):
            await client.step("main/1", 1, "exec", sandbox=sandbox, argv=["sleep", "1000"]).answer()
        assert (await client.step("main/1", 2, "exec", sandbox=sandbox, argv=["true"]).answer())["exit_code"] == 0


async def test_streams_are_recorded_and_never_replayed(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        await client.step("main", 1, "exec", sandbox=sandbox, argv=["echo", "x"], stream=True).answer()
        with pytest.raises(UnsupportedOperationError):
            await client.step("main", 1, "exec", sandbox=sandbox, argv=["echo", "x"], stream=True).answer()


async def test_a_call_wakes_what_is_paused(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        assert (await client.call("sandbox.pause", sandbox=sandbox))["state"] == "paused"
        assert (await client.call("sandbox.pause", sandbox=sandbox))["state"] == "paused"
        assert (await client.run(sandbox, "echo", "awake"))[1] == b"awake\n"
        info = await client.call("sandbox.inspect", sandbox=sandbox)
        assert (info["state"], info["paused_at"]) == ("running", None)
        assert (await client.call("sandbox.resume", sandbox=sandbox))["state"] == "running"


async def test_paused_time_counts_for_no_ttl(run_dir: str) -> None:
    clock = FakeClock()
    async with fake_node(run_dir, clock) as node, node.client() as client:
        sandbox = await create(client, ttl_idle_s=10.0, deadline_s=100.0)
        clock.advance(6)
        await client.call("sandbox.pause", sandbox=sandbox)
        clock.advance(1000)
        node.edge.reap()
        assert (await client.call("sandbox.inspect", sandbox=sandbox))["state"] == "paused"
        await client.call("sandbox.resume", sandbox=sandbox)
        clock.advance(9)
        node.edge.reap()
        assert (await client.call("sandbox.inspect", sandbox=sandbox))["state"] == "running"
        clock.advance(2)
        node.edge.reap()
        assert (await client.call("sandbox.stop", sandbox=sandbox))["cause"] == "idle_ttl"


async def test_a_pause_that_outlives_its_edge_counts_for_no_deadline(run_dir: str) -> None:
    machine, clock = Machine(), FakeClock()
    async with fake_node(run_dir, clock, machine) as first, first.client() as client:
        sandbox = await create(client, deadline_s=100.0)
        await client.call("sandbox.pause", sandbox=sandbox)
        first.leave = True
    clock.advance(1000)
    async with fake_node(run_dir, clock, machine) as second, second.client() as client:
        await client.call("sandbox.resume", sandbox=sandbox)
        second.leave = True
    async with fake_node(run_dir, clock, machine) as third, third.client() as client:
        info = await client.call("sandbox.inspect", sandbox=sandbox)
        assert (info["state"], info["paused_s"]) == ("running", 1000.0)
        clock.advance(99)
        third.edge.reap()
        assert (await client.call("sandbox.inspect", sandbox=sandbox))["state"] == "running"


async def test_a_pause_that_fails_leaves_it_running(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        node.driver.instances[sandbox].refuse_pause = UnsupportedOperationError("cannot pause: the disk is full")
        with pytest.raises(UnsupportedOperationError):
            await client.call("sandbox.pause", sandbox=sandbox)
        assert (await client.call("sandbox.inspect", sandbox=sandbox))["state"] == "running"
        assert (await client.run(sandbox, "echo", "on"))[1] == b"on\n"


async def test_pause_and_resume_without_a_gap(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandboxes = [await create(client) for _ in range(5)]
        for _ in range(40):
            calls = [
                client.start(f"sandbox.{verb}", sandbox=sandbox)
                for sandbox in sandboxes
                for verb in ("pause", "resume")
            ]
            for call in calls:
                await call.answer()
        states = {(await client.call("sandbox.stop", sandbox=sandbox))["state"] for sandbox in sandboxes}
        assert states == {"stopped"}


async def test_a_paused_sandbox_is_adopted_paused_and_its_calls_settle_when_it_wakes(run_dir: str) -> None:
    machine: Machine = {}
    async with fake_node(run_dir, machine=machine) as first, first.client() as client:
        sandbox = await create(client)
        client.step("main", 1, "exec", sandbox=sandbox, argv=["sleep", "0.05"])
        await client.call("sandbox.pause", sandbox=sandbox)
        first.leave = True
        first.driver.crash()
    async with fake_node(run_dir, machine=machine) as second, second.client() as client:
        assert (await client.call("sandbox.inspect", sandbox=sandbox))["state"] == "paused"
        await client.call("sandbox.resume", sandbox=sandbox)
        joined = await client.step("main", 1, "exec", sandbox=sandbox, argv=["sleep", "0.05"]).answer()
        assert joined["exit_code"] == 0


async def test_a_call_that_joins_a_step_wakes_what_is_paused(run_dir: str) -> None:
    machine: Machine = {}
    async with fake_node(run_dir, machine=machine) as first, first.client() as client:
        sandbox = await create(client)
        client.step("main", 1, "exec", sandbox=sandbox, argv=["sleep", "0.05"])
        await client.call("sandbox.pause", sandbox=sandbox)
        again = client.step("main", 1, "exec", sandbox=sandbox, argv=["sleep", "0.05"])
        assert (await again.answer())["exit_code"] == 0
        client.step("main", 2, "exec", sandbox=sandbox, argv=["sleep", "0.05"])
        await client.call("sandbox.pause", sandbox=sandbox)
        first.leave = True
        first.driver.crash()
    async with fake_node(run_dir, machine=machine) as second, second.client() as client:
        joined = await client.step("main", 2, "exec", sandbox=sandbox, argv=["sleep", "0.05"]).answer()
        assert joined["exit_code"] == 0
        assert (await client.call("sandbox.inspect", sandbox=sandbox))["state"] == "running"


async def test_the_earlier_holder_of_a_rollout_is_fenced(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        first = await client.call("lease.take", kind="rollout", name="r-1", job="j")
        made = await client.step("main", 1, "sandbox.create", epoch=1, spec={**IMAGE, "rollout": "r-1"}).answer()
        second = await client.call("lease.take", kind="rollout", name="r-1")
        assert (first["epoch"], second["epoch"], second["steps"]) == (1, 2, 1)
        with pytest.raises(LeaseLostError):
            await client.step("main/1", 1, "exec", epoch=1, sandbox=made["id"], argv=["true"]).answer()
        again = await client.step("main", 1, "sandbox.create", epoch=2, spec={**IMAGE, "rollout": "r-1"}).answer()
        assert again == made
        assert made["job"] == "j"
        assert (await client.run(made["id"], "true"))[0]["exit_code"] == 0  # what the edge numbers is anybody's


async def test_a_sandbox_of_a_rollout_has_no_lease_of_its_own(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        name = await create(client, rollout="r-1")
        with pytest.raises(ConflictError, match="'r-1'"):
            await client.call("lease.take", kind="sandbox", name=name)


async def test_a_create_said_again_after_a_crash_makes_one_sandbox(run_dir: str) -> None:
    machine: Machine = {}
    spec = {**IMAGE, "rollout": "r-2"}
    async with fake_node(run_dir, machine=machine) as first, first.client() as client:
        first.driver.gate = asyncio.Event()
        client.step("main", 1, "sandbox.create", spec=spec)
        await until(lambda: len(first.edge.registry) > 0)
        first.leave = True
        first.driver.crash()
        first.driver.gate.set()
        machine.clear()
    async with fake_node(run_dir, machine=machine) as second, second.client() as client:
        made = await client.step("main", 1, "sandbox.create", spec=spec).answer()
        listed = await client.call("sandbox.list", rollout="r-2")
        assert [info["id"] for info in listed["sandboxes"]] == [made["id"]]
        assert made["track"] == "main/1"


async def test_orphans_are_paused_and_then_stopped(run_dir: str) -> None:
    clock = FakeClock()
    async with fake_node(run_dir, clock) as node, node.client() as client:
        await client.call("lease.take", kind="rollout", name="r", job="j", lease_s=10, pause_after_s=5, stop_after_s=50)
        sandboxes = [await create(client, rollout="r") for _ in range(3)]
        other = await create(client)
        for advance, state in ((16, "paused"), (50, "stopped")):
            clock.advance(advance)
            node.edge.end_orphans()
            await until(lambda state=state: {str(node.edge.registry.get(s).state) for s in sandboxes} == {state})
        assert (await client.call("sandbox.inspect", sandbox=other))["state"] == "running"


async def test_verbs_over_a_job(run_dir: str) -> None:
    async with fake_node(run_dir, kept_final=64) as node, node.client() as client:
        mine = [await create(client, job="mine") for _ in range(20)]
        await create(client, job="theirs")
        assert (await client.call("job.pause", job="mine"))["done"] == 20
        assert (await client.call("job.inspect", job="mine"))["sandboxes"] == {"paused": 20}
        assert (await client.call("job.resume", job="mine"))["done"] == 20
        await client.call("sandbox.stop", sandbox=mine[0])
        assert (await client.call("job.stop", job="mine"))["done"] == 19
        assert (await client.call("job.inspect", job="mine"))["sandboxes"] == {"stopped": 20}
        assert (await client.call("job.inspect", job="theirs"))["sandboxes"] == {"running": 1}
        listed = await client.call("job.list")
        assert [info["job"] for info in listed["jobs"]] == ["mine", "theirs"]


async def test_a_stopped_sandbox_is_stopped_for_the_next_edge_too(run_dir: str) -> None:
    machine: Machine = {}
    async with fake_node(run_dir, machine=machine) as first, first.client() as client:
        sandbox = await create(client)
        await client.call("sandbox.stop", sandbox=sandbox)
        assert len(first.edge.registry) == 0
        assert first.edge.journal.query("SELECT state FROM sandboxes") == [("stopped",)]
        first.leave = True
    async with fake_node(run_dir, machine=machine) as second, second.client() as client:
        info = await client.call("sandbox.inspect", sandbox=sandbox)
        assert (info["state"], info["cause"]) == ("stopped", "client")
        with pytest.raises(SandboxStateError):
            await client.run(sandbox, "true")


@pytest.mark.parametrize("told", ["before its adoption fails", "although it is adopted"])
async def test_a_sandbox_that_ends_while_it_is_adopted_keeps_no_other_from_it(
    run_dir: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine: Machine = {}
    async with fake_node(run_dir, machine=machine) as first, first.client() as client:
        dying, other = await create(client), await create(client)
        client.step("main", 1, "exec", sandbox=dying, argv=["sleep", "1000"])
        await client.run(dying, "true")
        first.leave = True
        first.driver.crash()
    adopt = FakeDriver.adopt

    async def adopt_late(
        self: FakeDriver, order: Order, kept: bytes, on_end: OnEnd, on_known: OnKnown, *, paused: bool
    ) -> FakeInstance:
        instance = await adopt(self, order, kept, on_end, on_known, paused=paused)
        if order.id == dying:
            instance.die(End("init_killed", "PID 1 was killed by signal 9", {}))
            if told.startswith("before"):
                await instance.destroy(SandboxFailedError("cannot use it: it has ended"))
                raise SandboxFailedError("cannot use it: it has ended")
        return instance

    monkeypatch.setattr(FakeDriver, "adopt", adopt_late)
    async with fake_node(run_dir, machine=machine) as second, second.client() as client:
        await until(lambda: len(second.edge.registry) == 1)
        info = await client.call("sandbox.inspect", sandbox=dying)
        assert (info["state"], info["cause"]) == ("failed", "init_killed")
        assert (list(second.driver.instances), second.edge.slots.taken) == ([other], 1)
        assert (await client.run(other, "echo", "on"))[1] == b"on\n"
        with pytest.raises((OutcomeUnknownError, SandboxFailedError)):
            await client.step("main", 1, "exec", sandbox=dying, argv=["sleep", "1000"]).answer()


async def test_what_a_paused_sandbox_has_not_named_is_unknown_when_it_is_stopped(run_dir: str) -> None:
    machine: Machine = {}
    async with fake_node(run_dir, machine=machine) as first, first.client() as client:
        sandbox = await create(client)
        client.step("main", 1, "exec", sandbox=sandbox, argv=["sleep", "1000"])
        await client.call("sandbox.pause", sandbox=sandbox)
        first.leave = True
        first.driver.crash()
    async with fake_node(run_dir, machine=machine) as second, second.client() as client:
        joined = client.step("main", 1, "exec", sandbox=sandbox, argv=["sleep", "1000"])
        await client.call("sandbox.stop", sandbox=sandbox)
        with pytest.raises(OutcomeUnknownError):
            await joined.answer()


async def test_what_an_edge_leaves_undone_when_it_ends_is_no_outcome(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        node.driver.gate = asyncio.Event()
        spec = {**IMAGE, "rollout": "r"}
        calls = [
            client.step("main", 1, "sandbox.create", spec=spec),
            client.start("sandbox.create", spec=IMAGE),
        ]
        await until(lambda: len(node.edge.registry) == len(calls))
        node.edge.closing = True
        for sandbox in node.edge.registry.live():
            assert sandbox.creation is not None
            sandbox.creation.cancel()
        for call in calls:
            with pytest.raises(UnavailableError) as caught:
                await call.answer()
            assert caught.value.details["closing"] is True
        assert await read_log(client, "r") == []


async def test_a_step_that_is_given_up_before_it_is_written_down_does_not_run_for_ever(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        await until(lambda: not node.edge.log._retention._busy)  # it would commit what is held
        node.edge.journal._waiting = None  # nothing is written ahead
        hold = node.edge.journal._hold
        hold(True)
        call = client.step("main", 1, "sandbox.pause", sandbox=sandbox)
        await until(lambda: bool(node.edge.log.running_steps(sandbox)))
        call.send(Kind.CANCEL)
        await client.call("sandbox.list")  # behind the cancel
        hold(False)
        with pytest.raises(DeadlineExceededError):
            await call.answer()
        paused = await client.step("main", 1, "sandbox.pause", sandbox=sandbox).answer()
        assert paused["state"] == "paused"
