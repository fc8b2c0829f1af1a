"""Logs are read and followed, also when the connection is lost or the server has a successor."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from libdsec import DSecClient
from libdsec.errors import OutcomeUnknownError, UnavailableError
from libdsec.log import CommandLog
from libdsec.protocol.exec import ExecAnswer, ExecRequest
from libdsec.protocol.frames import STDOUT
from libdsec.protocol.spec import SandboxInfo, SandboxSpec
from libdsec.protocol.steps import LogReadAnswer
from libdsec.testing import FakeCall, FakeServer

ID = "s" * 24
INFO = SandboxInfo(ID, SandboxSpec("debian:12"), "running", None, 0.0, 0.0, "n", rollout="r")
OK = ExecAnswer("exited", 0)


def test_steps_of_a_sandbox_are_read(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        large = bytes(50_000)
        for n in range(1, 8):
            log.record("main/1", n, "exec", ExecRequest(ID, (str(n),)), OK, b"small" if n < 7 else large)

        @server.answers("sandbox.inspect")
        async def _(call: FakeCall) -> SandboxInfo:
            return INFO

        sandbox = client.sandbox(ID)
        steps = await sandbox.steps()
        assert [step.n for step in steps] == list(range(1, 8))
        assert msgspec.msgpack.decode(steps[0].request)["argv"] == ["1"]
        assert steps[-1].stdout.data is None
        steps = await sandbox.steps(limit=2, last=True, outputs=True, requests=False)
        assert [step.stdout.data for step in steps] == [b"small", large]
        log.record("main/1", 8, "exec", ExecRequest(ID, ("8",)), OK, large, opaque="it gave too much")
        (step,) = await sandbox.steps(limit=1, last=True, outputs=True)
        assert (step.stdout.size, step.stdout.data) == (50_000, None)
        reads = [args for method, args in server.calls if method == "log.read"]
        assert {(read.scope, read.sandbox) for read in reads} == {("r", ID)}
        assert [method for method, _ in log.asked()] == ["sandbox.inspect"]
        assert len(await sandbox.steps(track="main/1", limit=4)) == 4
        rollout = await client.attach("r")
        assert len(await rollout.steps()) == 8

    with_fake(use)


def test_a_reading_goes_on_with_the_successor_of_a_server_that_ends(with_fake, fake_log, clock):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        client._channel.clock = clock
        for n in range(1, 8):
            log.record("main", n, "exec", ExecRequest(ID, (str(n),)), OK)
        refusals = 9

        @server.answers("log.read")
        async def _(call: FakeCall) -> LogReadAnswer:
            nonlocal refusals
            refusals -= 1
            if refusals >= 0:
                raise UnavailableError("cannot go on: the server ends", closing=True)
            return await log._read(call)

        reading = (await CommandLog.find(client, "r")).pages()
        assert [step.n async for page in reading for step in page] == list(range(1, 8))

    with_fake(use)


def test_the_last_steps_are_the_same_ones_after_a_loss(with_fake, fake_log, clock):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        client._channel.clock = clock
        for n in range(1, 11):
            log.record("main", n, "exec", ExecRequest(ID, (str(n),)), OK)

        @server.answers("log.read")
        async def _(call: FakeCall) -> LogReadAnswer:
            server.answers("log.read")(log._read)
            await call.send_value(STDOUT, [step for step, _, _ in log.entries[-6:-3]])
            for n in range(11, 16):
                log.record("main", n, "exec", ExecRequest(ID, (str(n),)), OK)
            raise UnavailableError("cannot go on: the server ends", closing=True)

        reading = (await CommandLog.find(client, "r")).pages(limit=6, last=True)
        assert [step.n async for page in reading for step in page] == [5, 6, 7, 8, 9, 10]

    with_fake(use)


def test_steps_are_followed(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        for n in range(1, 4):
            log.record("main", n, "exec", ExecRequest(ID, (str(n),)), OK)

        @server.answers("sandbox.inspect")
        async def _(call: FakeCall) -> SandboxInfo:
            return msgspec.structs.replace(INFO, rollout=None)

        @server.answers("log.read")
        async def _(call: FakeCall) -> LogReadAnswer:
            assert call.args.follow
            assert call.args.scope == ID
            assert call.args.sandbox is None
            for step, _, _ in log.entries:
                await call.send_value(STDOUT, [step])
            if call.args.after == 7:
                server.drop()
            await call.canceled.wait()
            return LogReadAnswer(3, 3)

        seen = []
        async with contextlib.aclosing(client.sandbox(ID).follow_steps()) as following:
            async for step in following:
                seen.append(step.n)
                if len(seen) == 3:
                    break
        assert seen == [1, 2, 3]
        while not server.canceled:  # noqa: ASYNC110  # the server has no event of it
            await asyncio.sleep(0)

        async def lost() -> None:
            async for _ in client.sandbox(ID).follow_steps(after=7):
                pass

        with pytest.raises(OutcomeUnknownError):
            await lost()

    with_fake(use)
