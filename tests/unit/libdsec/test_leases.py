"""Leases are kept, lost and given back; jobs are acted on as a whole."""

from __future__ import annotations

import asyncio

import pytest

import libdsec.sync
from libdsec import DSecClient, DSecContainerRunArgs, Sandbox
from libdsec.errors import (
    InvalidArgumentError,
    LeaseLostError,
    NotFoundError,
    QuotaExceededError,
)
from libdsec.protocol.calls import Empty, SandboxList
from libdsec.protocol.exec import ExecAnswer, ExecRequest
from libdsec.protocol.jobs import JobAnswer, JobInfo, JobList, JobProgress, LeaseInfo, RolloutList
from libdsec.protocol.spec import SandboxInfo, SandboxSpec
from libdsec.protocol.steps import LogReadAnswer
from libdsec.testing import FakeCall, FakeServer

ID = "s" * 24
INFO = SandboxInfo(ID, SandboxSpec("debian:12"), "running", None, 0.0, 0.0, "n", rollout="r")
OK = ExecAnswer("exited", 0)


class Gate:
    """A clock that a test moves: a sleep ends when its time has come."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleepers: list[tuple[float, asyncio.Event]] = []

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        sleeper = (self.now + seconds, asyncio.Event())
        self.sleepers.append(sleeper)
        try:
            await sleeper[1].wait()
        finally:
            self.sleepers.remove(sleeper)

    async def move(self, seconds: float) -> None:
        """In steps, so that what wakes can sleep again; then let everything settle."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + 0.25, until)
            for at, event in self.sleepers:
                if at <= self.now:
                    event.set()
            for _ in range(40):
                await asyncio.sleep(0)


def renewals(server: FakeServer) -> int:
    return [method for method, _ in server.calls].count("lease.renew")


def test_a_lease_is_renewed_while_its_holder_lives(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        fake_log(server)
        client._channel.clock = clock = Gate()
        async with await client.attach("r", lease=30) as rollout:
            await clock.move(61)
            assert renewals(server) == 6
            holder = server.calls[-1][1]
            assert (holder.kind, holder.name, holder.epoch) == ("rollout", "r", 1)
        assert server.calls[-1][0] == "lease.release"
        await clock.move(100)
        assert renewals(server) == 6
        await rollout.release()
        assert server.calls[-1][0] == "lease.release"
        assert [method for method, _ in server.calls].count("lease.release") == 1

    with_fake(use)


def test_an_exception_leaves_the_lease_held(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        fake_log(server)
        client._channel.clock = clock = Gate()
        with pytest.raises(KeyError):
            async with await client.attach("r"):
                raise KeyError("mine")
        await clock.move(200)
        assert [method for method, _ in server.calls] == ["lease.take", "log.read"]

    with_fake(use)


def test_a_lease_that_somebody_else_took_ends_every_call(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        client._channel.clock = clock = Gate()
        log.record("main", 1, "exec", ExecRequest(ID, ("a",)), OK)
        rollout = await client.attach(ID, lease=30)
        log.epoch += 1
        await clock.move(11)
        for call in (rollout.sandbox.run(["a"]), rollout.sandbox.files.read("f"), rollout.sandbox.exec_stream(["a"])):
            with pytest.raises(LeaseLostError, match="cannot go on with sandbox"):
                await call
        assert log.asked() == []
        await rollout.release()  # nothing is left to give back
        assert server.calls[-1][0] == "lease.renew"

    with_fake(use)


def test_a_refused_call_ends_the_lease_at_once(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        log.record("main", 2, "exec", ExecRequest(ID, ("a",)), OK)

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            raise LeaseLostError("cannot go on: somebody else does", epoch=1, held=2)

        sandbox = (await client.attach(ID)).sandbox
        for _ in range(2):
            with pytest.raises(LeaseLostError):
                await sandbox.run(["a"])
        assert len(log.asked()) == 1

    with_fake(use)


def test_a_refused_stream_ends_the_lease_at_once(with_fake, fake_log, tmp_path):
    async def use(server: FakeServer, client: DSecClient) -> None:
        fake_log(server)

        async def refuse(call: FakeCall) -> ExecAnswer:
            raise LeaseLostError("cannot go on: somebody else does", epoch=1, held=2)

        for method in ("exec", "file.write"):
            server.answers(method)(refuse)
        (tmp_path / "f").write_bytes(b"x")

        async def stream(sandbox: Sandbox) -> None:
            await (await sandbox.exec_stream(["a"])).wait()

        async def upload(sandbox: Sandbox) -> None:
            await sandbox.files.upload(tmp_path / "f", "f")

        for refused in (stream, upload):
            rollout = await client.attach(ID)
            with pytest.raises(LeaseLostError):
                await refused(rollout.sandbox)
            with pytest.raises(LeaseLostError, match="cannot go on with sandbox"):
                rollout._lease.check()
            await rollout.close()

    with_fake(use)


def test_a_closed_client_keeps_no_lease(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        fake_log(server)
        client._channel.clock = clock = Gate()
        rollout = await client.attach("r")
        await client.close()
        await clock.move(30)
        with pytest.raises(LeaseLostError, match="its client was closed"):
            await rollout.run_container(DSecContainerRunArgs(container_image="a:b"))
        await rollout.close()

    with_fake(use)


def test_a_node_that_is_away_costs_the_lease_only_when_it_has_expired(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        fake_log(server)
        client._channel.clock = clock = Gate()
        rollout = await client.attach("r", lease=30)
        server.drop()
        server.reachable = False
        await clock.move(25)
        server.reachable = True
        await clock.move(5)
        assert renewals(server) >= 1
        await clock.move(20)
        rollout._lease.check()
        server.drop()
        server.reachable = False
        await clock.move(45)
        with pytest.raises(LeaseLostError, match="could not be renewed for 30 s"):
            await rollout.run_container(DSecContainerRunArgs(container_image="a:b"))

    with_fake(use)


def test_what_was_waited_for_a_server_is_no_time_of_the_lease(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        fake_log(server)
        client._channel.clock = clock = Gate()
        server.drop()
        server.reachable = False
        attaching = asyncio.create_task(client.attach("r", lease=30))
        await clock.move(25)
        server.reachable = True
        await clock.move(1)
        rollout = await attaching
        await clock.move(60)
        rollout._lease.check()
        assert renewals(server) >= 5
        await rollout.release()

    with_fake(use)


def test_a_renewal_that_is_refused_for_now_is_tried_again(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        client._channel.clock = clock = Gate()
        refusals = 3

        @server.answers("lease.renew")
        async def _(call: FakeCall) -> LeaseInfo:
            nonlocal refusals
            refusals -= 1
            if refusals >= 0:
                raise QuotaExceededError("cannot take another call: 4096 are under way")
            return await log._renew(call)

        rollout = await client.attach("r", lease=30)
        await clock.move(60)
        rollout._lease.check()
        refusals = 1000
        await clock.move(60)
        with pytest.raises(LeaseLostError, match=r"could not be renewed for 30 s .*4096 are under way"):
            rollout._lease.check()

    with_fake(use)


def test_a_log_that_cannot_be_read_gives_no_rollout(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        fake_log(server)
        client._channel.clock = clock = Gate()

        @server.answers("log.read")
        async def _(call: FakeCall) -> LogReadAnswer:
            raise NotFoundError("cannot read it")

        with pytest.raises(NotFoundError):
            await client.attach("r")
        await clock.move(100)
        assert renewals(server) == 0

    with_fake(use)


@pytest.mark.parametrize("lease", [0, -1, float("nan")])
def test_leases_that_are_none(with_fake, lease):
    async def use(server: FakeServer, client: DSecClient) -> None:
        with pytest.raises(InvalidArgumentError, match="above 0"):
            await client.attach("r", lease=lease)
        with pytest.raises(InvalidArgumentError, match="above 0"):
            client.hold_job("j", lease=lease)
        for name in ("", "a b", "x" * 200):
            with pytest.raises(InvalidArgumentError, match="cannot use rollout"):
                await client.attach(name)
        assert server.calls == []

    with_fake(use)


def test_a_job_is_held(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        client._channel.clock = clock = Gate()
        async with client.hold_job("j", lease=30, pause_after=1, stop_after=2) as job:
            await clock.move(11)
            job.check()
            log.epoch += 1
            await clock.move(11)
            with pytest.raises(LeaseLostError):
                job.check()
        take = server.calls[0][1]
        assert (take.kind, take.name, take.lease_s, take.pause_after_s, take.stop_after_s) == ("job", "j", 30, 1, 2)

    with_fake(use)


def script_jobs(server: FakeServer) -> None:
    @server.answers("job.list")
    async def _(call: FakeCall) -> JobList:
        names = ["a", "b", "c"]
        start = 0 if call.args.after is None else names.index(call.args.after) + 1
        return JobList((JobInfo(names[start], {"running": 1}, 1),), names[start] if start < 2 else None)

    @server.answers("job.inspect")
    async def _(call: FakeCall) -> JobInfo:
        return JobInfo(call.args.job, {"paused": 2}, 1)

    @server.answers("rollout.list")
    async def _(call: FakeCall) -> RolloutList:
        made = tuple(LeaseInfo("rollout", name, 1, call.args.job, 0, 0.0, 0.0, False) for name in ("p", "q"))
        return RolloutList(made[:1], "p") if call.args.after is None else RolloutList(made[1:])

    @server.answers("sandbox.list")
    async def _(call: FakeCall) -> SandboxList:
        assert (call.args.job, call.args.rollout) == ("a", "r")
        return SandboxList((INFO,))

    async def act(call: FakeCall) -> JobAnswer:
        call.event(JobProgress(1, 2))
        call.event(JobProgress(2, 2))
        return JobAnswer(1, {ID: "cannot"}, 1)

    for verb in ("pause", "resume", "stop"):
        server.answers(f"job.{verb}")(act)

    @server.answers("server.drain")
    async def _(call: FakeCall) -> Empty:
        assert call.args.timeout_s == 7
        return Empty()


def test_jobs(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        script_jobs(server)
        assert [job.job for job in await client.jobs()] == ["a", "b", "c"]
        assert (await client.job("a")).sandboxes == {"paused": 2}
        assert [(rollout.name, rollout.job) for rollout in await client.rollouts("a")] == [("p", "a"), ("q", "a")]
        assert await client.list(job="a", rollout="r") == (INFO,)
        for act in (client.pause_job, client.resume_job, client.stop_job):
            seen: list[JobProgress] = []
            answer = await act("a", seen.append)
            assert (answer.done, answer.failed, answer.failures) == (1, {ID: "cannot"}, 1)
            assert [news.done for news in seen] == [1, 2]
            assert (await act("a")).done == 1
        await client.drain_server(7)

    with_fake(use)


def test_blocking_twins(fake_node: FakeServer, fake_log):
    script_jobs(fake_node)
    log = fake_log(fake_node)
    log.record("main", 1, "exec", ExecRequest(ID, ("a",), limit=libdsec.sync.OutputLimit()), OK, b"out")
    with libdsec.sync.DSecClient(fake_node.url) as client:
        with client.attach(ID) as held:
            assert (held.id, held.epoch, held.recorded, held.job) == (ID, 1, 1, None)
            assert held.sandbox.run(["a"]).replayed
            assert held.replayed == 1
            assert held.track("x").sandbox.track("y").id == ID
            assert [step.n for step in held.sandbox.steps()] == [1]
            assert [step.n for step in held.steps()] == [1]
            for handle in (held, held.sandbox):
                assert next(handle.follow_steps()).n == 1
        with client.hold_job("j") as job:
            job.check()
        assert client.pause_job("a").done == 1
        assert len(client.jobs()) == 3
    assert fake_node.calls[-1][0] == "job.list"
