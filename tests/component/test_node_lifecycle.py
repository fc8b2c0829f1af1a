"""Create, exec, stop and what they leave, through a real socket over a fake driver."""

from __future__ import annotations

import asyncio

import pytest

from dsec.drivers.base import End
from dsec.testing.fake_clock import FakeClock
from dsec.testing.fake_node import FakeNode, fake_node
from dsec.testing.wire_client import WireClient
from libdsec.protocol.errors import (
    AdmissionRejectedError,
    CommandNotStartedError,
    ConflictError,
    ImageNotFoundError,
    InternalError,
    InvalidArgumentError,
    NoEligibleNodeError,
    SandboxFailedError,
    SandboxNotFoundError,
    SandboxStateError,
    UnavailableError,
    UnsupportedOperationError,
)


async def create(client: WireClient, **spec: object) -> str:
    info = await client.call("sandbox.create", spec={"image": "tiny:1", **spec})
    return str(info["id"])


def given_back(node: FakeNode) -> bool:
    edge = node.edge
    return (
        not node.driver.instances
        and edge.slots.taken == 0
        and edge.admission.memory_requested == 0
        and edge.admission.pids_requested == 0
        and len(edge.registry) == 0
    )


async def test_create_exec_stop(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        info = await client.call("sandbox.create", spec={"image": "tiny:1", "env": {"A": "1"}})
        assert info["state"] == "running"
        assert info["id"].startswith("fakenode")
        answer, output = await client.run(info["id"], "echo", "hello")
        assert (answer["ended"], answer["exit_code"], output) == ("exited", 0, b"hello\n")
        answer, _ = await client.run(info["id"], "false")
        assert answer["exit_code"] == 1
        stopped = await client.call("sandbox.stop", sandbox=info["id"])
        assert (stopped["state"], stopped["cause"]) == ("stopped", "client")
        assert given_back(node)
        again = await client.call("sandbox.stop", sandbox=info["id"])
        assert again == stopped


async def test_environment_is_merged_call_over_sandbox_over_defaults(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client, env={"A": "sandbox", "B": "sandbox"})
        _, output = await client.run(sandbox, "env", env={"B": "call"})
        env = dict(line.split("=", 1) for line in output.decode().splitlines())
        assert (env["A"], env["B"], env["HOME"]) == ("sandbox", "call", "/root")
        assert env["PATH"].startswith("/usr/local/sbin:")
        _, output = await client.run(sandbox, "env")
        assert b"B=sandbox\n" in output


async def test_log_tells_what_happened_also_of_a_stopped_sandbox(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        await client.run(sandbox, "false")
        with pytest.raises(CommandNotStartedError):
            await client.run(sandbox, "nonsense")
        await client.call("sandbox.stop", sandbox=sandbox)
        entries = (await client.call("sandbox.logs", sandbox=sandbox))["entries"]
        with pytest.raises(InvalidArgumentError, match="-5 entries"):
            await client.call("sandbox.logs", sandbox=sandbox, limit=-5)
        assert [e["event"] for e in entries] == ["created", "running", "exec", "exec", "stopped"]
        assert entries[2]["detail"]["exit_code"] == 1
        assert entries[3]["detail"]["code"] == "command_not_started"
        assert entries[4]["detail"]["cause"] == "client"


async def test_a_crash_is_seen_with_its_cause_and_everything_is_given_back(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        running = client.start("exec", sandbox=sandbox, argv=["sleep", "1000"])
        await client.run(sandbox, "true")
        node.driver.instances[sandbox].die(End("init_killed", "PID 1 was killed by signal 9", {"signal": 9}))
        with pytest.raises(SandboxFailedError) as caught:
            await running.answer()
        assert caught.value.details["cause"] == "init_killed"
        info = await client.call("sandbox.inspect", sandbox=sandbox)
        assert (info["state"], info["cause"]) == ("failed", "init_killed")
        with pytest.raises(SandboxFailedError, match="signal 9"):
            await client.run(sandbox, "true")
        assert (await client.call("sandbox.stop", sandbox=sandbox))["state"] == "failed"
        assert given_back(node)


async def test_refusals_name_what_is_wrong_and_take_nothing(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        with pytest.raises(ImageNotFoundError):
            await create(client, image="none:1")
        with pytest.raises(UnsupportedOperationError, match="microvm"):
            await create(client, backend="microvm")
        with pytest.raises(UnsupportedOperationError, match="network"):
            await create(client, network_rules={"pypi": True})
        with pytest.raises(InvalidArgumentError, match="unknown field"):
            await create(client, gpus=1)
        with pytest.raises(InvalidArgumentError, match="memory_bytes"):
            await create(client, limits={"memory_bytes": 1 << 50})
        with pytest.raises(InvalidArgumentError, match="cpu_cores"):
            await create(client, limits={"cpu_cores": 64})
        node.driver.refuse = InternalError("cannot create: a step failed", stage="overlay")
        with pytest.raises(InternalError, match="a step failed"):
            await create(client)
        assert given_back(node)
        await create(client, network_rules={"pypi": False})


async def test_admission_counts_requests_and_not_limits(run_dir: str) -> None:
    gib = 1 << 30
    async with fake_node(run_dir, memory_for_requests=gib) as node, node.client() as client:
        wish = {"limits": {"memory_bytes": 8 * gib}, "requests": {"memory_bytes": gib // 2}}
        first = await create(client, **wish)
        await create(client, **wish)
        with pytest.raises(NoEligibleNodeError) as caught:
            await create(client, **wish)
        assert caught.value.details["filter"] == "memory"
        await client.call("sandbox.stop", sandbox=first)
        await create(client, **wish)
    assert given_back(node)


async def test_an_image_that_a_sandbox_is_made_of_stays(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        with pytest.raises(ConflictError, match=f"cannot remove image tiny:1: .* {sandbox} among them") as caught:
            await client.call("image.remove", ref="tiny:1")
        assert caught.value.details["sandboxes"] == [sandbox]
        await client.call("sandbox.stop", sandbox=sandbox)
        await client.call("image.remove", ref="tiny:1")


async def test_ids_run_out_and_come_back(run_dir: str) -> None:
    async with fake_node(run_dir, id_ranges=2) as node, node.client() as client:
        first = await create(client)
        await create(client)
        with pytest.raises(AdmissionRejectedError, match="ids"):
            await create(client)
        await client.call("sandbox.stop", sandbox=first)
        await create(client)
        assert node.edge.slots.taken == 2


async def test_a_key_makes_one_sandbox(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        node.driver.gate = asyncio.Event()
        calls = [client.start("sandbox.create", spec={"image": "tiny:1"}, idempotency_key="k") for _ in range(3)]
        await client.call("server.info")
        node.driver.gate.set()
        ids = {(await call.answer())["id"] for call in calls}
        assert len(ids) == 1
        assert node.driver.created == 1
        with pytest.raises(ConflictError):
            await client.call("sandbox.create", spec={"image": "tiny:1", "labels": {"a": "b"}}, idempotency_key="k")


async def test_a_key_whose_create_failed_may_be_used_again(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        node.driver.refuse = InternalError("cannot create: a step failed")
        with pytest.raises(InternalError):
            await client.call("sandbox.create", spec={"image": "tiny:1"}, idempotency_key="k")
        info = await client.call("sandbox.create", spec={"image": "tiny:1"}, idempotency_key="k")
        assert info["state"] == "running"


async def test_a_create_outlives_the_machinery_that_goes_away_in_it(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        node.driver.refuse = UnavailableError("cannot create: the fork server has gone")
        info = await client.call("sandbox.create", spec={"image": "tiny:1"})
        assert info["state"] == "running"


async def test_stop_of_a_sandbox_that_is_being_created(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        node.driver.gate = asyncio.Event()
        creating = client.start("sandbox.create", spec={"image": "tiny:1"})
        await client.call("server.info")
        (listed,) = (await client.call("sandbox.list"))["sandboxes"]
        assert listed["state"] == "creating"
        with pytest.raises(SandboxStateError):
            await client.run(listed["id"], "true")
        stopped = await client.call("sandbox.stop", sandbox=listed["id"])
        assert (stopped["state"], stopped["cause"]) == ("stopped", "client")
        with pytest.raises(SandboxStateError, match="while it was being made"):
            await creating.answer()
        assert given_back(node)


async def test_concurrent_stops_join(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        stops = [client.start("sandbox.stop", sandbox=sandbox) for _ in range(5)]
        assert [(await stop.answer())["state"] for stop in stops] == ["stopped"] * 5
        assert given_back(node)


async def test_idle_and_deadline_end_a_sandbox(run_dir: str) -> None:
    clock = FakeClock()
    async with fake_node(run_dir, clock) as node, node.client() as client:
        idle = await create(client, ttl_idle_s=10)
        used = await create(client, ttl_idle_s=10)
        busy = await create(client, ttl_idle_s=10)
        limited = await create(client, deadline_s=15)
        client.start("exec", sandbox=busy, argv=["sleep", "1000"])
        clock.advance(6)
        await client.run(used, "true")
        clock.advance(6)
        node.edge.reap()
        assert (await client.call("sandbox.stop", sandbox=idle))["cause"] == "idle_ttl"
        states = {s["id"]: s["state"] for s in (await client.call("sandbox.list"))["sandboxes"]}
        assert states == {used: "running", busy: "running", limited: "running"}
        clock.advance(6)
        node.edge.reap()
        assert (await client.call("sandbox.stop", sandbox=limited))["cause"] == "deadline"
        assert (await client.call("sandbox.stop", sandbox=used))["cause"] == "idle_ttl"
        assert (await client.call("sandbox.inspect", sandbox=busy))["state"] == "running"


async def test_lists_come_in_pages_and_by_label(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        big = {"X": "x" * 60_000}
        ids = {await create(client, env=big, labels={"n": str(n % 2)}) for n in range(10)}
        seen: list[str] = []
        after = None
        pages = 0
        while True:
            page = await client.call("sandbox.list", after=after)
            seen += [s["id"] for s in page["sandboxes"]]
            pages += 1
            after = page["next"]
            if after is None:
                break
        assert pages > 1
        assert seen == sorted(ids)
        odd = await client.call("sandbox.list", labels={"n": "1"})
        assert len(odd["sandboxes"]) + (0 if odd["next"] is None else 1) >= 4
        assert node.driver.created == 10


async def test_ended_sandboxes_are_remembered_within_a_bound(run_dir: str) -> None:
    async with fake_node(run_dir, kept_final=3) as node, node.client() as client:
        ids = []
        for _ in range(5):
            ids.append(await create(client))
            await client.call("sandbox.stop", sandbox=ids[-1])
        listed = (await client.call("sandbox.list", include_final=True))["sandboxes"]
        assert {s["id"] for s in listed} == set(ids[2:])
        with pytest.raises(SandboxNotFoundError):
            await client.call("sandbox.inspect", sandbox=ids[0])
        assert given_back(node)


async def test_images(run_dir: str) -> None:
    async with fake_node(run_dir) as _, _.client() as client:
        build = client.start("image.build", ref="new:1", source="dir:/x", config={"env": {"I": "image"}, "cwd": "/tmp"})
        assert (await build.answer())["ref"] == "new:1"
        assert [e["stage"] for e in build.events] == ["fetch", "publish"]
        assert [i["ref"] for i in (await client.call("image.list"))["images"]] == ["new:1", "tiny:1"]
        sandbox = await create(client, image="new:1")
        _, output = await client.run(sandbox, "pwd")
        assert output == b"/tmp\n"
        await client.call("image.remove", ref="tiny:1")
        with pytest.raises(ImageNotFoundError):
            await client.call("image.inspect", ref="tiny:1")
        assert (await client.call("node.doctor"))["findings"][0]["verdict"] == "ok"


async def test_a_closing_node_refuses_creates_and_stops_everything(run_dir: str) -> None:
    async with fake_node(run_dir) as node, node.client() as client:
        sandbox = await create(client)
        await client.call("server.shutdown")
        await node.shutdown.wait()
        await node.edge.stop_all()
        with pytest.raises((UnavailableError, NoEligibleNodeError)):
            await create(client)
        assert (await client.call("sandbox.inspect", sandbox=sandbox))["cause"] == "shutdown"
        assert given_back(node)
