"""Creating, listing and images through the SDK, and its arguments."""

from __future__ import annotations

import asyncio

import pytest

from libdsec import DSecClient, DSecContainerRunArgs
from libdsec.errors import InvalidArgumentError, OutcomeUnknownError, SandboxNotFoundError, SessionClosedError
from libdsec.protocol.calls import Empty, LogAnswer, LogEntry, SandboxList
from libdsec.protocol.environment import BuildProgress, ImageConfig, ImageInfo, ImageList
from libdsec.protocol.exec import ExecAnswer, OutputInfo, SessionInfo
from libdsec.protocol.frames import STDOUT
from libdsec.protocol.spec import MIB, Limits, Requests, SandboxInfo, SandboxSpec
from libdsec.testing import FakeCall, FakeServer

IMAGE = ImageInfo("debian:12", "base", (), ImageConfig(), 0.0)


def info_of(number: int, state: str = "running") -> SandboxInfo:
    return SandboxInfo(f"{number:024d}", SandboxSpec("debian:12"), state, None, 0.0, 0.0, "n")


def test_every_option_goes_out_as_it_was_given():
    args = DSecContainerRunArgs(
        container_image="debian:12",
        workspace="repo/x:v1",
        toolkits=["t:1", "t:2"],
        memory_limit_mb=512,
        cpu_cores_limit=1.5,
        pids_limit=100,
        disk_limit_mb=1024,
        disk_inodes_limit=5000,
        memory_request_mb=32,
        pids_request=8,
        ttl_running_stop=60,
        deadline=3600,
        network_rules={"pypi": False},
        init_user=1000,
        env={"A": "1"},
        cwd="/srv",
        hostname="box",
        labels={"task": "7"},
        nested_user_namespaces=True,
    )
    assert args.to_spec() == SandboxSpec(
        image="debian:12",
        workspace="repo/x:v1",
        toolkits=("t:1", "t:2"),
        limits=Limits(512 * MIB, 1.5, 100, 1024 * MIB, 5000),
        requests=Requests(32 * MIB, 8),
        env={"A": "1"},
        cwd="/srv",
        user="1000",
        hostname="box",
        ttl_idle_s=60,
        deadline_s=3600,
        network_rules={"pypi": False},
        nested_user_namespaces=True,
        labels={"task": "7"},
    )
    assert DSecContainerRunArgs(container_image="a:b").to_spec() == SandboxSpec("a:b")
    small = DSecContainerRunArgs(container_image="a:b", memory_limit_mb=2, pids_limit=2).to_spec()
    assert small.requests == Requests(2 * MIB, 2)  # never more than the limit


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="memory_limit_gb"):
        DSecContainerRunArgs(container_image="a:b", memory_limit_gb=2)
    with pytest.raises(TypeError):
        DSecContainerRunArgs()


@pytest.mark.parametrize(
    "options",
    [
        {"container_image": "no-tag"},
        {"workspace": "Upper:v1"},
        {"toolkits": ["x"]},
        {"toolkits": "a:b"},
        {"container_image": None},
        {"memory_limit_mb": 0},
        {"memory_limit_mb": float("nan")},
        {"memory_limit_mb": "512"},
        {"cpu_cores_limit": -1},
        {"pids_limit": True},
        {"pids_limit": 1.5},
        {"deadline": float("inf")},
        {"env": {"A": 1}},
        {"hostname": 5},
        {"nested_user_namespaces": "yes"},
    ],
    ids=str,
)
def test_values_that_no_node_could_honour_are_refused(options):
    with pytest.raises(InvalidArgumentError):
        DSecContainerRunArgs(**{"container_image": "a:b", **options}).to_spec()


def test_a_create_is_asked_for_again_under_the_same_key(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("sandbox.create")
        async def _(call: FakeCall) -> SandboxInfo:
            if len(server.calls) < 3:
                server.drop()
                await asyncio.Event().wait()
            return info_of(1)

        sandbox = await client.run_container(DSecContainerRunArgs(container_image="debian:12"), timeout=5)
        assert sandbox.id == f"{1:024d}"
        keys = {request.idempotency_key for _, request in server.calls}
        assert len(keys) == 1
        assert None not in keys
        assert {request.timeout_s for _, request in server.calls} == {5}

    with_fake(use)


def test_a_server_that_keeps_dying_is_not_asked_for_ever(with_fake, clock):
    async def use(server: FakeServer, client: DSecClient) -> None:
        client._channel.clock = clock

        @server.answers("sandbox.create")
        async def _(call: FakeCall) -> SandboxInfo:
            server.drop()
            await asyncio.Event().wait()
            return info_of(1)

        with pytest.raises(OutcomeUnknownError):
            await client.run_container(DSecContainerRunArgs(container_image="debian:12"))
        assert 10 < len(server.calls) < 200
        assert 50 < clock.now <= 60
        assert len({request.idempotency_key for _, request in server.calls}) == 1

    with_fake(use)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_timeouts_that_are_none(with_fake, timeout):
    async def use(server: FakeServer, client: DSecClient) -> None:
        sandbox = client.sandbox("s" * 24)
        for call in (
            sandbox.run(["true"], timeout=timeout),
            sandbox.run_shell("true", timeout=timeout),
            sandbox.exec_stream(["true"], timeout=timeout),
            client.run_container(DSecContainerRunArgs(container_image="a:b"), timeout=timeout),
        ):
            with pytest.raises(InvalidArgumentError, match="above 0"):
                await call
        assert server.calls == []

    with_fake(use)


def test_run_container_takes_its_own_arguments_only(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        with pytest.raises(InvalidArgumentError, match="DSecContainerRunArgs"):
            await client.run_container({"container_image": "debian:12"})

    with_fake(use)


def test_list_reads_every_page(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("sandbox.list")
        async def _(call: FakeCall) -> SandboxList:
            start = 0 if call.args.after is None else int(call.args.after) + 1
            page = tuple(info_of(i) for i in range(start, min(start + 4, 10)))
            return SandboxList(page, page[-1].id if start + 4 < 10 else None)

        found = await client.list(labels={"a": "b"}, include_final=True)
        assert [int(info.id) for info in found] == list(range(10))
        assert {request.include_final for _, request in server.calls} == {True}

    with_fake(use)


def test_inspect_stop_logs(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("sandbox.inspect")
        async def _(call: FakeCall) -> SandboxInfo:
            if call.args.sandbox.startswith("x"):
                raise SandboxNotFoundError("cannot find it")
            return info_of(7)

        @server.answers("sandbox.stop")
        async def _(call: FakeCall) -> SandboxInfo:
            return info_of(7, "stopped")

        @server.answers("sandbox.logs")
        async def _(call: FakeCall) -> LogAnswer:
            return LogAnswer((LogEntry(1.0, "created"),))

        async with await client.get(f"{7:024d}") as sandbox:
            assert (await sandbox.info()).state == "running"
            assert (await sandbox.logs(limit=5))[0].event == "created"
        assert server.calls[-1][0] == "sandbox.stop"
        with pytest.raises(SandboxNotFoundError):
            await client.get("x" * 24)

    with_fake(use)


def test_the_bodys_error_wins_over_a_failed_stop(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        async def fail() -> None:
            async with client.sandbox("s" * 24):
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await fail()

    with_fake(use)


def test_images(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("image.list")
        async def _(call: FakeCall) -> ImageList:
            return ImageList((IMAGE,))

        @server.answers("image.inspect")
        async def _(call: FakeCall) -> ImageInfo:
            return IMAGE

        @server.answers("image.remove")
        async def _(call: FakeCall) -> Empty:
            return Empty()

        @server.answers("image.build")
        async def _(call: FakeCall) -> ImageInfo:
            for stage in ("fetch", "write", "publish"):
                call.event(BuildProgress(stage, 5))
            return IMAGE

        assert await client.images() == (IMAGE,)
        assert await client.image("debian:12") == IMAGE
        await client.remove_image("debian:12")
        seen: list[BuildProgress] = []
        built = await client.build_image("debian:12", "release:bookworm", packages=["git"], progress=seen.append)
        assert built == IMAGE
        assert [news.stage for news in seen] == ["fetch", "write", "publish"]
        assert server.calls[-1][1].packages == ("git",)

        def failing(news: BuildProgress) -> None:
            raise KeyError("mine")

        with pytest.raises(KeyError):
            await client.build_image("debian:12", "release:bookworm", progress=failing)
        assert server.connections == 1

    with_fake(use)


def test_a_session_from_open_to_its_end(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("session.open")
        async def _(call: FakeCall) -> SessionInfo:
            return SessionInfo(4, 100)

        @server.answers("session.run")
        async def _(call: FakeCall) -> ExecAnswer:
            assert call.args.session == 4
            await call.send(STDOUT, b"x")
            ended = call.args.command == "exit"
            return ExecAnswer("exited", 0, stdout=OutputInfo(1, 1), untrusted=True, session_ended=ended)

        @server.answers("session.close")
        async def _(call: FakeCall) -> Empty:
            return Empty()

        sandbox = client.sandbox("s" * 24)
        async with sandbox.session(cwd="/tmp", env={"A": "1"}) as session:
            result = await session.run("cd /")
            assert (result.stdout, result.untrusted) == ("x", True)
        assert [method for method, _ in server.calls] == ["session.open", "session.run", "session.close"]
        with pytest.raises(SessionClosedError):
            await session.run("ls")
        with pytest.raises(SessionClosedError):
            await session.open()
        async with sandbox.session() as session:
            assert (await session.run("exit")).session_ended
            with pytest.raises(SessionClosedError):
                await session.run("ls")
        assert server.calls[-1][0] == "session.run"  # one that has ended needs no closing

    with_fake(use)
