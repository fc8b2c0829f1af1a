"""Commands through the SDK: results, limits, streams, and what a lost or late server turns them into."""

from __future__ import annotations

import asyncio

import pytest

from libdsec import CommandFailedError, DSecClient, OutputLimit
from libdsec.errors import (
    ClientClosedError,
    CommandNotStartedError,
    DeadlineExceededError,
    InvalidArgumentError,
    OutcomeUnknownError,
    WireError,
)
from libdsec.protocol.exec import ExecAnswer, OutputInfo
from libdsec.protocol.frames import STDERR, STDOUT, WINDOW
from libdsec.sandbox import Sandbox
from libdsec.testing import FakeCall, FakeServer


def sandbox_of(client: DSecClient) -> Sandbox:
    return client.sandbox("s" * 24)


def test_run_shell_gives_output_and_code(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            await call.send(STDOUT, b"out\xff")
            await call.send(STDERR, b"err")
            return ExecAnswer("exited", 3, duration_us=1500, stdout=OutputInfo(4, 4), stderr=OutputInfo(3, 3))

        result = await sandbox_of(client).run_shell("x", cwd="/tmp", env={"A": "1"}, user=7, timeout=5)
        assert (result.exit_code, result.stdout, result.stderr_bytes, result.duration_s) == (3, "out�", b"err", 0.0015)
        assert not result.ok
        assert not result.truncated
        with pytest.raises(CommandFailedError, match="exit code 3: err"):
            result.check()
        _, request = server.calls[-1]
        assert request.argv == ("/bin/sh", "-c", "x")
        assert (request.cwd, request.env, request.user, request.timeout_s) == ("/tmp", {"A": "1"}, "7", 5)
        assert not request.stdin

    with_fake(use)


def test_stdin_larger_than_the_window_goes_under_credit(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            data = await call.receive()
            await call.send(STDOUT, data)
            return ExecAnswer("exited", 0, stdout=OutputInfo(len(data), len(data)))

        data = bytes(range(256)) * 4096
        assert len(data) > 3 * WINDOW
        limit = OutputLimit(2 << 20, 0)
        assert (await sandbox_of(client).run(["cat"], stdin=data, limit=limit)).stdout_bytes == data
        assert (await sandbox_of(client).run(["cat"], stdin=b"", limit=limit)).stdout_bytes == b""

    with_fake(use)


def test_a_command_that_ends_without_reading_its_stdin(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            return ExecAnswer("exited", 0)

        assert (await sandbox_of(client).run(["true"], stdin=bytes(10 * WINDOW))).ok

    with_fake(use)


def test_an_error_keeps_its_class_and_details(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            raise CommandNotStartedError("cannot start", kind="not_found", errno=2, stage="exec")

        with pytest.raises(CommandNotStartedError) as caught:
            await sandbox_of(client).run(["nope"])
        assert caught.value.details == {"kind": "not_found", "errno": 2, "stage": "exec"}

    with_fake(use)


def test_more_output_than_asked_for_ends_the_connection_not_the_memory(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            await call.send(STDOUT, b"x" * 101)
            return ExecAnswer("exited", 0)

        with pytest.raises(WireError, match="more than 100 bytes"):
            await sandbox_of(client).run(["yes"], limit=OutputLimit(60, 40))

    with_fake(use)


def test_a_late_answer_is_cancelled_and_its_rest_is_dropped(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        drained = asyncio.Event()

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            await call.canceled.wait()
            await call.send(STDOUT, b"x" * (3 * WINDOW))  # needs credit that only a draining client gives
            drained.set()
            return ExecAnswer("canceled")

        with pytest.raises(DeadlineExceededError):
            await client._channel.collect("exec", _request(), timeout=0.01)
        await drained.wait()
        assert len(server.canceled) == 1
        assert server.connections == 1

    with_fake(use)


def test_cancelling_the_task_cancels_the_call(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        started, ended = asyncio.Event(), asyncio.Event()

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            started.set()
            await call.canceled.wait()
            ended.set()
            return ExecAnswer("canceled")

        task = asyncio.ensure_future(sandbox_of(client).run(["sleep", "9"]))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await ended.wait()

    with_fake(use)


def test_a_lost_connection_leaves_the_outcome_unknown_and_the_next_call_reconnects(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            if len(server.calls) == 1:
                server.drop()
                await asyncio.Event().wait()
            return ExecAnswer("exited", 0)

        with pytest.raises(OutcomeUnknownError, match="exec"):
            await sandbox_of(client).run(["once"])
        assert (await sandbox_of(client).run(["twice"])).ok
        assert server.connections == 2

    with_fake(use)


def test_streams_both_ways(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            data = await call.receive()
            await call.send(STDOUT, data * 5, end=True)
            await call.send(STDERR, b"done", end=True)
            assert await call.events.get() == {"signal": 15, "tree": False}
            assert await call.events.get() == {"rows": 50, "cols": 100}
            return ExecAnswer("signaled", signal=15, stdout=OutputInfo(5 * len(data)))

        process = await sandbox_of(client).exec_stream(["cat"], stdin=True)
        data = bytes(WINDOW + 1)
        assert await process.stdin.write(data)
        await process.stdin.close()
        assert b"".join([chunk async for chunk in process.stdout]) == data * 5
        assert await process.stderr.read() == b"done"
        assert await process.stderr.read() == b""
        process.signal(15)
        process.resize(50, 100)
        result = await process.wait()
        assert (result.ended, result.signal, result.truncated) == ("signaled", 15, False)
        assert not await process.stdin.write(b"late")

    with_fake(use)


def test_kill_is_answered(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            await call.send(STDOUT, b"before")
            await call.canceled.wait()
            return ExecAnswer("canceled")

        process = await sandbox_of(client).exec_stream(["sleep", "9"])
        process.kill()
        assert (await process.wait()).ended == "canceled"
        assert await process.stdout.read() == b"before"
        process.kill()

    with_fake(use)


def test_output_merges_both_streams_and_raises_at_the_end(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            await call.send(STDERR, b"e")
            await call.send(STDOUT, b"o")
            raise CommandNotStartedError("cannot start", kind="other", errno=1, stage="fork")

        process = await sandbox_of(client).exec_stream(["x"])
        seen = []

        async def read() -> None:
            async for name, chunk in process.output():
                seen.append((name, chunk))

        with pytest.raises(CommandNotStartedError):
            await read()
        assert sorted(seen) == [("stderr", b"e"), ("stdout", b"o")]

    with_fake(use)


def test_a_server_that_ignores_credit_is_refused(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            for _ in range(WINDOW // 65536 + 1):
                call.send_unasked(STDOUT, bytes(65536))
            return ExecAnswer("exited", 0)

        process = await sandbox_of(client).exec_stream(["yes"])
        with pytest.raises(WireError, match="none was granted"):
            await process.wait()

    with_fake(use)


def test_leaving_a_process_cancels_it(with_fake):
    async def use(server: FakeServer, client: DSecClient) -> None:
        over = asyncio.Event()

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            await call.canceled.wait()
            over.set()
            return ExecAnswer("canceled")

        async with await sandbox_of(client).exec_stream(["sleep", "9"]) as process:
            pass
        await over.wait()
        with pytest.raises(ClientClosedError):
            await process.wait()

    with_fake(use)


@pytest.mark.parametrize("argv", ["echo hi", [], ()])
def test_argv_must_be_a_list(with_fake, argv):
    async def use(server: FakeServer, client: DSecClient) -> None:
        with pytest.raises(InvalidArgumentError, match="program first"):
            await sandbox_of(client).run(argv)

    with_fake(use)


def _request():
    from libdsec.protocol.exec import ExecRequest

    return ExecRequest("s" * 24, ("x",))
