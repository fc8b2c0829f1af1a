"""Which step each call is: numbers, tracks, keys; and that it is said again as it was after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from libdsec import DSecClient, DSecContainerRunArgs, Sandbox
from libdsec.errors import (
    CapacityError,
    ClientClosedError,
    InvalidArgumentError,
    OutcomeUnknownError,
    UnavailableError,
)
from libdsec.protocol.calls import METHODS, STEPS, Empty, ServerInfo
from libdsec.protocol.exec import ExecAnswer, SessionInfo
from libdsec.protocol.files import FileAnswer, FileInfo
from libdsec.protocol.frames import STDOUT
from libdsec.protocol.nodes import NodeStatus
from libdsec.protocol.spec import SandboxInfo, SandboxSpec
from libdsec.protocol.steps import StepTag
from libdsec.testing import FakeCall, FakeServer

ID = "s" * 24
INFO = SandboxInfo(ID, SandboxSpec("debian:12"), "running", None, 0.0, 0.0, "n")
ARGS = DSecContainerRunArgs(container_image="debian:12")
ENTRY = FileInfo("f", "file", 1, 0o644, 0, 0, 0)


def answer_all(server: FakeServer) -> None:
    """Every step is answered, well and with nothing."""

    async def answer(call: FakeCall):
        if call.method == "file.list":
            await call.send_value(STDOUT, [ENTRY])
        if call.method == "file.watch":
            await call.send_value(STDOUT, [])
            await call.canceled.wait()
        return {
            "exec": ExecAnswer("exited", 0),
            "session.run": ExecAnswer("exited", 0),
            "session.open": SessionInfo(4, 100),
            "session.close": Empty(),
        }.get(call.method, INFO if call.method.startswith("sandbox.") else FileAnswer(info=ENTRY))

    for method in STEPS:
        server.answers(method)(answer)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # nobody could set an event
        await asyncio.sleep(0)


async def go_away(server: FakeServer, client: DSecClient) -> None:
    """The server is gone and the client has seen it."""
    server.drop()
    server.reachable = False
    connection = client._channel._connection
    await until(lambda: connection is None or not connection.usable)


def tags(server: FakeServer) -> list[tuple[str, int] | None]:
    return [None if step is None else (step.track, step.n) for step in server.steps]


async def everything(sandbox: Sandbox, directory: str) -> None:
    """Every call that is a step, but create."""
    files = sandbox.files
    await sandbox.run(["true"])
    await sandbox.run_shell("true", stdin=b"x")
    await files.read("f")
    await files.write("f", b"x")
    await files.append("f", b"x")
    await files.stat("f")
    await files.exists("f")
    await files.list("/")
    await files.mkdir("d")
    await files.move("a", "b")
    await files.remove("b")
    await files.upload(__file__, "f")
    await files.download("f", f"{directory}/f")
    await files.archive("d", f"{directory}/d.tar")
    await files.extract(__file__, "d")
    async with files.watch("d"):
        pass
    async with await sandbox.exec_stream(["true"]) as process:
        await process.wait()
    await sandbox.info()
    await sandbox.pause()
    await sandbox.resume()
    await sandbox.stop()


def test_all_calls_of_a_handle_are_steps_of_its_track(with_fake, tmp_path):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        sandbox = await client.run_container(ARGS)
        await everything(sandbox, str(tmp_path))
        assert tags(server) == [None, *(("main", n) for n in range(1, len(server.calls)))]
        assert {method for method, _ in server.calls} | {"session.open", "session.run", "session.close"} == set(STEPS)
        assert set(METHODS) > STEPS

    with_fake(use)


@pytest.mark.parametrize("track", [None, "cli"])
def test_the_node_numbers_the_calls_of_handles_made_from_an_id(with_fake, tmp_path, track):
    async def use(server: FakeServer, _: DSecClient) -> None:
        answer_all(server)
        async with DSecClient(endpoint=server, track=track) as client:
            sandbox = await client.get(ID)
            await everything(sandbox.track("a"), str(tmp_path))
            async with sandbox.session() as session:
                await session.run("true")
            await client.stop(ID)
            assert set(tags(server)) == {(track or "other", 0)}
            if track is not None:
                await (await client.run_container(ARGS)).run(["true"])
                assert set(tags(server)) == {(track, 0)}

    with_fake(use)


def test_numbers_go_in_the_order_of_calls_whenever_the_answers_come(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        gates = {str(i): asyncio.Event() for i in range(20)}

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            await gates[call.args.argv[0]].wait()
            return ExecAnswer("exited", 0)

        sandbox = await client.run_container(ARGS)
        tasks = [asyncio.ensure_future(sandbox.run([str(i)])) for i in range(20)]
        for i in reversed(range(20)):
            gates[str(i)].set()
        await asyncio.gather(*tasks)
        seen = {args.argv[0]: tag for (_, args), tag in zip(server.calls[1:], tags(server)[1:], strict=True)}
        assert seen == {str(i): ("main", i + 1) for i in range(20)}

    with_fake(use)


def test_tracks_and_sessions_number_by_themselves(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        sandbox = await client.run_container(ARGS)
        await sandbox.run(["true"])
        await sandbox.track("a").run(["true"])
        await sandbox.track("a").files.stat("f")  # the same track again goes on
        await sandbox.track("a").track("b").run(["true"])
        async with sandbox.session() as session:
            await session.run("true")
            await sandbox.run(["true"])
            await session.run("true")
        assert tags(server)[1:] == [
            ("main", 1),
            ("main/a", 1),
            ("main/a", 2),
            ("main/a/b", 1),
            ("main", 2),
            ("main/2", 1),
            ("main", 3),
            ("main/2", 2),
            ("main/2", 3),
        ]

    with_fake(use)


@pytest.mark.parametrize("name", ["", "7", "a/b", "cli", "other", "key:x", "a\n", "x" * 400])
def test_names_that_no_track_can_have(with_fake, name):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        sandbox = await client.run_container(ARGS)
        with pytest.raises(InvalidArgumentError, match="cannot use track"):
            sandbox.track(name)

    with_fake(use)


def test_a_key_is_a_place_of_its_own(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        sandbox = await client.run_container(ARGS, key="mine")
        assert server.calls[0][1].idempotency_key == "mine"
        await sandbox.run(["true"], key="k1")
        await sandbox.run_shell("true", key="k2")
        await client.sandbox(ID).files.write("f", b"x", key="k3")
        async with sandbox.session() as session:
            await session.run("true", key="k4")
        for files_call in (
            sandbox.files.append("f", b"x", key="k5"),
            sandbox.files.mkdir("d", key="k6"),
            sandbox.files.move("a", "b", key="k7"),
            sandbox.files.remove("d", key="k8"),
        ):
            await files_call
        seen = tags(server)[1:]
        assert [tag for tag in seen if tag[0].startswith("key:")] == [(f"key:k{i}", 1) for i in range(1, 9)]
        assert [tag for tag in seen if not tag[0].startswith("key:")] == [("main", 1), ("main/1", 1)]
        for bad in ("", "x\n", "x" * 400):
            with pytest.raises(InvalidArgumentError, match="cannot use"):
                await sandbox.run(["true"], key=bad)

    with_fake(use)


def test_arguments_that_cannot_be_sent_use_no_number(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        sandbox = await client.run_container(ARGS)
        for argv in (["\udcff"], ["x" * 300_000], []):
            with pytest.raises(InvalidArgumentError):
                await sandbox.run(argv)
        await sandbox.run(["true"])
        assert tags(server)[1:] == [("main", 1)]

    with_fake(use)


def test_what_surely_did_not_run_gives_its_number_back(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        answer_all(server)
        refusals = [CapacityError("cannot: full"), UnavailableError("cannot: hung"), InvalidArgumentError("cannot: no")]

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            if refusals:
                raise refusals.pop(0)
            return ExecAnswer("exited", 0)

        sandbox = await client.run_container(ARGS)
        for kind in (CapacityError, UnavailableError, InvalidArgumentError):
            with pytest.raises(kind):
                await sandbox.run(["true"])
        await sandbox.run(["true"])
        assert tags(server)[1:] == [("main", 1), ("main", 1), ("main", 1), ("main", 2)]

    with_fake(use)


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


def test_a_closing_server_is_waited_for_and_another_unavailable_one_is_not(with_fake, clock):
    async def use(server: FakeServer, client: DSecClient) -> None:
        client._channel.clock = clock
        node = NodeStatus("n", "e", ("container",), 1, 0, 1, 0, 0, True)
        closing = True

        @server.answers("server.info")
        async def _(call: FakeCall) -> ServerInfo:
            if len(server.calls) < 6:
                raise UnavailableError("cannot: it ends", closing=closing)
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
