"""Which step each call is: numbers, tracks, keys."""

from __future__ import annotations

import asyncio

import pytest
from answering import ARGS, ID, answer_all, tags

from libdsec import DSecClient, Sandbox
from libdsec.errors import (
    CapacityError,
    InvalidArgumentError,
    UnavailableError,
)
from libdsec.protocol.calls import METHODS, STEPS
from libdsec.protocol.exec import ExecAnswer
from libdsec.testing import FakeCall, FakeServer


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
    await sandbox.pack_diff("a:1")
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
        refusals.append(CapacityError("cannot: full"))
        with pytest.raises(CapacityError):
            await (await sandbox.exec_stream(["true"])).wait()
        await sandbox.run(["true"])
        assert tags(server)[1:] == [("main", n) for n in (1, 1, 1, 2, 2)]

    with_fake(use)
