"""What cannot be told again from a log says so, and why."""

from __future__ import annotations

import asyncio
import hashlib

import msgspec
import pytest
from recorded import ARGS, ID, MODE, OK, attached, command, created, ran

from libdsec import DSecClient, DSecContainerRunArgs
from libdsec.errors import (
    InvalidArgumentError,
    OutcomeUnknownError,
    ReplayDivergedError,
    UnavailableError,
    UnsupportedOperationError,
)
from libdsec.protocol.exec import (
    ExecAnswer,
)
from libdsec.protocol.files import (
    FileAnswer,
    FileReadRequest,
    FileWatchRequest,
    FileWriteRequest,
)
from libdsec.protocol.steps import StepTag
from libdsec.testing import FakeCall, FakeServer


def test_a_call_that_differs_names_both(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        ran(log, "main/1", 1, "make", "x" * 5000)
        ran(log, "main/1", 2, "b")
        sandbox = await (await attached(client, log)).run_container(ARGS)
        with pytest.raises(ReplayDivergedError, match=r"step main/1#1 of r: recorded is exec\(argv=\['make'") as caught:
            await sandbox.files.read("/etc/passwd", length=10)
        details = caught.value.details
        assert (details["scope"], details["track"], details["n"]) == ("r", "main/1", 1)
        assert details["got"] == "file.read(path='/etc/passwd', length=10)"
        assert len(details["expected"]) < 1000
        with pytest.raises(ReplayDivergedError, match="now came exec"):
            await sandbox.run(["b"], cwd="/")
        assert log.asked() == []

    with_fake(use)


def test_a_create_that_differs(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        rollout = await attached(client, log)
        with pytest.raises(ReplayDivergedError, match="recorded is sandbox"):
            await rollout.run_container(DSecContainerRunArgs(container_image="debian:13"))

    with_fake(use)


def test_input_that_differs(with_fake, fake_log, tmp_path):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        digest = hashlib.sha256(b"abc").digest()
        for n, partly in ((1, digest), (2, digest), (3, b"")):
            ran_with = command("cat", stdin=True)
            log.record("main/1", n, "exec", ran_with, OK, b"out", input_digest=partly)
        log.record(
            "main/1",
            4,
            "file.write",
            FileWriteRequest(ID, "f", mode=MODE, parents=True),
            FileAnswer(3),
            input_digest=digest,
        )
        log.record("main/1", 5, "file.write", FileWriteRequest(ID, "f", mode=MODE), FileAnswer(3), input_digest=digest)
        sandbox = await (await attached(client, log)).run_container(ARGS)
        assert (await sandbox.run(["cat"], stdin=b"abc")).replayed
        with pytest.raises(ReplayDivergedError, match="with input of SHA-256 ba7816bf"):
            await sandbox.run(["cat"], stdin=b"abd")
        assert (await sandbox.run(["cat"], stdin=b"never read")).replayed
        (tmp_path / "f").write_bytes(b"abd")
        (tmp_path / "f").chmod(0o644)
        with pytest.raises(ReplayDivergedError, match=r"file\.write with input"):
            await sandbox.files.upload(tmp_path / "f", "f")
        with pytest.raises(ReplayDivergedError):
            await sandbox.files.write("f", b"abd")
        assert log.asked() == []

    with_fake(use)


def test_an_unknown_outcome_is_the_callers_to_choose(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        log.record("main/1", 1, "exec", command("a"))

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            return OK

        sandbox = await (await attached(client, log)).run_container(ARGS)
        with pytest.raises(OutcomeUnknownError, match="step main/1#1 of r") as caught:
            await sandbox.run(["a"])
        assert caught.value.details == {"scope": "r", "track": "main/1", "n": 1}
        assert log.asked() == []
        sandbox = await (await attached(client, log, on_unknown="again")).run_container(ARGS)
        with pytest.raises(ReplayDivergedError):
            await (await (await attached(client, log, on_unknown="again")).run_container(ARGS)).run(["b"])
        assert not (await sandbox.run(["a"])).replayed
        assert log.asked() == [("exec", StepTag("main/1", 1, 2, again=True))]
        with pytest.raises(InvalidArgumentError, match="on_unknown"):
            await client.attach("r", on_unknown="skip")

    with_fake(use)


@pytest.mark.parametrize("key", [None, "k"])
def test_an_unknown_outcome_gives_one_more_run_and_no_third(with_fake, fake_log, key):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        place = ("main/1", 1) if key is None else ("key:k", 1)
        log.record(*place, "exec", command("a"))
        refusals = [UnavailableError("cannot: it ends")]

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            if refusals:
                raise refusals.pop()
            if call.step.again:
                server.drop()
                await asyncio.Event().wait()
            raise OutcomeUnknownError("cannot tell how it ended")

        sandbox = await (await attached(client, log, on_unknown="again")).run_container(ARGS)
        with pytest.raises(UnavailableError):  # it surely did not run: the choice stands
            await sandbox.run(["a"], key=key)
        for _ in range(2 if key else 1):
            with pytest.raises(OutcomeUnknownError):
                await sandbox.run(["a"], key=key)
        said = [step for _, step in log.asked("exec")]
        assert [step.again for step in said] == [True, True, *[False] * (2 if key else 1)]
        assert {(step.track, step.n) for step in said} == {place}

    with_fake(use)


def test_what_cannot_be_replayed_says_why(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        streamed = command("a", stream=True)
        ran(log, "main/1", 1, "a", opaque="it gave 17 MB")
        log.record("main/1", 2, "exec", streamed, OK)
        log.record(
            "main/1", 3, "exec", msgspec.structs.replace(streamed, stdin=True, pty=True), OK, opaque="a terminal"
        )
        log.record("main/1", 4, "file.watch", FileWatchRequest(ID, "d"), FileAnswer())
        log.record("main/1", 5, "file.read", FileReadRequest(ID, "f", length=11), FileAnswer(), opaque="it gave 1 GB")
        sandbox = await (await attached(client, log)).run_container(ARGS)
        for call, why in (
            (sandbox.run(["a"]), "main/1#1 of r, exec: it gave 17 MB"),
            (sandbox.exec_stream(["a"]), "main/1#2 of r, exec: it was a stream"),
            (sandbox.exec_stream(["a"], pty=True), "main/1#3 of r, exec: a terminal"),
            (sandbox.files.watch("d").__aenter__(), "main/1#4 of r, file.watch: it was a stream"),
            (sandbox.files.read("f", limit=10), "it gave 1 GB"),
        ):
            with pytest.raises(UnsupportedOperationError, match=why):
                await call
        assert log.asked() == []

    with_fake(use)
