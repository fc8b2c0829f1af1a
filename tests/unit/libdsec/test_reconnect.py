"""What a loss costs: calls are said again as they were, in their order, or end as what they may be."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest
from answering import ARGS, ID, answer_all, go_away, tags, until

from libdsec import DSecClient, Sandbox
from libdsec.errors import (
    ClientClosedError,
    InvalidArgumentError,
    OutcomeUnknownError,
    UnavailableError,
)
from libdsec.protocol.calls import Empty, ServerInfo
from libdsec.protocol.exec import ExecAnswer, SessionInfo
from libdsec.protocol.frames import STDOUT
from libdsec.protocol.nodes import NodeStatus
from libdsec.protocol.steps import StepTag
from libdsec.testing import FakeCall, FakeServer


def test_a_lost_step_is_said_again_as_it_was(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        seen = []

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            seen.append((call.step, call.args, await call.receive() if call.args.stdin else b""))
            if len(seen) < 4:
                server.drop()
                await asyncio.Event().wait()
            await call.send(STDOUT, b"hello")
            return ExecAnswer("exited", 0)

        sandbox = await client.run_container(ARGS)
        await sandbox.info()
        assert (await sandbox.run(["cat"], stdin=b"input")).stdout == "hello"
        assert {(step, data) for step, _, data in seen} == {(StepTag("main", 2), b"input")}
        assert len(seen) == 4
        await sandbox.files.write("f", b"x")
        assert tags(server)[-1] == ("main", 3)

    with_fake(use)


def test_a_keyed_call_is_said_again_and_an_unnumbered_one_is_not(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            if len(server.calls) in (1, 3):
                server.drop()
                await asyncio.Event().wait()
            return ExecAnswer("exited", 0)

        sandbox = client.sandbox(ID)
        assert (await sandbox.run(["true"], key="k")).ok
        assert tags(server) == [("key:k", 1)] * 2
        with pytest.raises(OutcomeUnknownError):
            await sandbox.run(["true"])
        assert len(server.calls) == 3

    with_fake(use)


def test_streams_are_not_said_again(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            server.drop()
            await asyncio.Event().wait()
            raise AssertionError

        sandbox = await client.run_container(ARGS)
        process = await sandbox.exec_stream(["true"])
        with pytest.raises(OutcomeUnknownError):
            await process.wait()
        await sandbox.info()
        assert tags(server)[1:] == [("main", 1), ("main", 2)]

    with_fake(use)


def test_a_server_that_is_away_is_waited_for(with_fake, clock):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        sandbox = await client.run_container(ARGS)
        client._channel.clock = clock
        await go_away(server, client)
        waiting = [asyncio.ensure_future(sandbox.run(["true"])) for _ in range(10)]
        await until(lambda: clock.now >= 20)
        server.reachable = True
        assert all([(await result).ok for result in waiting])
        assert set(tags(server)[1:]) == {("main", n) for n in range(1, 11)}
        assert max(clock.slept) <= 1.0
        await go_away(server, client)
        with pytest.raises(UnavailableError, match="unreachable"):
            await sandbox.run(["true"])
        server.reachable = True
        await sandbox.run(["true"])
        assert tags(server)[-1] == ("main", 11)  # the number of the call that never came there

    with_fake(use)


def test_a_call_of_little_patience_waits_for_nobody_elses_attempt(with_fake, monkeypatch):
    async def use(server: FakeServer, client: DSecClient) -> None:
        await go_away(server, client)
        trying = asyncio.Event()

        async def hang(timeout: float) -> NoReturn:
            trying.set()
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(server, "connect", hang)
        patient = asyncio.ensure_future(client.server_info())
        await trying.wait()
        with pytest.raises(UnavailableError, match="within 0 s"):
            await client._channel.call("server.info", Empty(), repeatable=True, patience=0)
        assert not patient.done()
        patient.cancel()

    with_fake(use)


def test_what_may_have_run_never_becomes_unavailable(with_fake, clock):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        sandbox = await client.run_container(ARGS)
        client._channel.clock = clock

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            server.drop()
            server.reachable = False
            await asyncio.Event().wait()
            raise AssertionError

        with pytest.raises(OutcomeUnknownError):
            await sandbox.run(["true"])
        assert clock.now > 50

    with_fake(use)


@pytest.mark.parametrize("why", ["closing", "joined"])
def test_a_closing_server_is_waited_for_and_another_unavailable_one_is_not(with_fake, clock, why):
    async def use(server: FakeServer, client: DSecClient) -> None:
        client._channel.clock = clock
        node = NodeStatus("n", "e", ("container",), 1, 0, 1, 0, 0, True)
        closing = True

        @server.answers("server.info")
        async def _(call: FakeCall) -> ServerInfo:
            if len(server.calls) < 6:
                raise UnavailableError("cannot: it ends", **{why: closing})
            return ServerInfo("v", 1, 1, node)

        assert (await client.server_info()).version == "v"
        assert len(server.calls) == 6
        assert server.connections == 1
        server.calls.clear()
        closing = False
        with pytest.raises(UnavailableError):
            await client.server_info()
        assert len(server.calls) == 1

    with_fake(use)


def test_closing_the_client_ends_the_waiting(with_fake, clock):
    async def use(server: FakeServer, client: DSecClient) -> None:
        client._channel.clock = clock
        await go_away(server, client)
        waiting = asyncio.ensure_future(client.server_info())
        await until(lambda: clock.now >= 1)
        await client.close()
        with pytest.raises(ClientClosedError):
            await waiting

    with_fake(use)


def strict(server: FakeServer) -> list[int]:
    """Makes the server take the numbers of `exec` without a gap, as a node does. The numbers it took, in order."""
    taken: list[int] = []

    @server.answers("exec")
    async def _(call: FakeCall) -> ExecAnswer:
        n, last = call.step.n, max(taken, default=0)
        if n > last + 1:
            raise InvalidArgumentError(f"cannot take step {n}", field="step.n", last=last)
        if n not in taken:
            taken.append(n)
        if call.args.argv[0] == "hang":
            await call.canceled.wait()
        return ExecAnswer("exited", 0)

    return taken


def test_calls_that_come_out_of_order_after_a_loss_find_their_order(with_fake, clock):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        taken = strict(server)
        sandbox = await client.run_container(ARGS)
        client._channel.clock = clock
        await go_away(server, client)
        waiting = [asyncio.ensure_future(sandbox.run([str(i)])) for i in range(30)]
        await until(lambda: clock.now >= 5)
        server.reachable = True
        assert all([(await result).ok for result in waiting])
        assert taken == list(range(1, 31))
        places = {step.n: args.argv[0] for (_, args), step in zip(server.calls[1:], server.steps[1:], strict=True)}
        assert places == {i + 1: str(i) for i in range(30)}

    with_fake(use)


def test_what_was_lost_goes_out_before_what_is_new(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        came: list[tuple[int, int]] = []
        release = asyncio.Event()

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            came.append((server.connections, call.step.n))
            if server.connections == 1:
                await release.wait()
            return ExecAnswer("exited", 0)

        sandbox = await client.run_container(ARGS)
        first = [asyncio.ensure_future(sandbox.run([str(i)])) for i in range(20)]
        await until(lambda: len(came) == 20)

        async def chain() -> None:
            for _ in range(20):
                await sandbox.run(["more"])

        server.drop()
        chains = [asyncio.ensure_future(chain()) for _ in range(5)]
        await asyncio.gather(*first, *chains)
        after = [n for connection, n in came if connection > 1]
        assert after == sorted(after)
        assert set(after) >= set(range(1, 121))
        assert len(after) == 120

    with_fake(use)


def test_a_call_given_up_before_it_was_sent_leaves_no_gap(with_fake, clock):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        taken = strict(server)
        sandbox = await client.run_container(ARGS)
        client._channel.clock = clock
        await go_away(server, client)
        waiting = [asyncio.ensure_future(sandbox.run([str(i)])) for i in range(4)]
        await until(lambda: clock.now >= 5)
        for given_up in (0, 2):
            waiting[given_up].cancel()
        await asyncio.sleep(0)
        server.reachable = True
        assert (await waiting[1]).ok
        assert (await waiting[3]).ok
        for _ in range(3):
            assert (await sandbox.run(["more"])).ok
        assert taken == [1, 2, 3, 4, 5]

    with_fake(use)


def test_a_call_given_up_after_it_was_sent_keeps_its_number(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        taken = strict(server)
        sandbox = await client.run_container(ARGS)
        hanging = asyncio.ensure_future(sandbox.run(["hang"]))
        await until(lambda: bool(taken))
        hanging.cancel()
        assert (await sandbox.run(["next"])).ok
        assert taken == [1, 2]

    with_fake(use)


async def lose_streams(server: FakeServer, client: DSecClient, sandbox: Sandbox, count: int) -> None:
    """With the server, before it wrote them down."""
    strictly, server._handlers["exec"] = server._handlers["exec"], server._handlers["sandbox.inspect"]
    for _ in range(count):
        async with await sandbox.exec_stream(["true"]):
            pass
    server.drop()
    connection = client._channel._connection
    await until(lambda: not connection.usable)
    server._handlers["exec"] = strictly


def test_numbers_that_the_node_never_saw_cost_one_refusal(with_fake, clock):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        taken = strict(server)
        sandbox = await client.run_container(ARGS)
        client._channel.clock = clock
        await lose_streams(server, client, sandbox, 5)
        server.steps.clear()
        for name in "abcdefg":
            assert (await sandbox.run([name])).ok
        assert taken == list(range(1, 8))
        assert [n for _, n in tags(server)] == [6, *range(1, 8)]

    with_fake(use)


def test_a_call_finds_its_place_behind_one_that_runs_long(with_fake, clock):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        taken = strict(server)
        sandbox = await client.run_container(ARGS)
        client._channel.clock = clock
        await lose_streams(server, client, sandbox, 2)
        hanging = asyncio.ensure_future(sandbox.run(["hang"]))
        assert all(result.ok for result in await asyncio.gather(*(sandbox.run([name]) for name in "abc")))
        assert taken == [1, 2, 3, 4]
        assert not hanging.done()
        hanging.cancel()

    with_fake(use)


def test_a_number_that_the_node_never_saw_is_used_next(with_fake, clock):
    """A stream was lost with the server before the server wrote it down."""

    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        taken = strict(server)
        sandbox = await client.run_container(ARGS)
        client._channel.clock = clock
        server._handlers["exec"], strictly = server._handlers["sandbox.inspect"], server._handlers["exec"]
        process = await sandbox.exec_stream(["true"])
        server.drop()
        with pytest.raises(OutcomeUnknownError):
            await process.wait()
        server._handlers["exec"] = strictly
        session_track = []

        @server.answers("session.open")
        async def _(call: FakeCall) -> SessionInfo:
            session_track.append(call.step.n)
            return SessionInfo(1, 1)

        assert (await sandbox.run(["a"])).ok
        assert (await sandbox.run(["b"])).ok
        assert taken == [1, 2]
        async with sandbox.session() as session:
            await session.run("true")
        assert session_track == [3]
        assert tags(server)[-2:] == [("main/3", 1), ("main/3", 2)]

    with_fake(use)
