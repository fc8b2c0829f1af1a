"""Fast-forward: recorded steps return what they returned."""

from __future__ import annotations

import asyncio
import hashlib
import os

import msgspec
import pytest
from answering import answer_all
from recorded import ARGS, ENTRY, ID, INFO, LIMIT, MODE, OK, attached, command, created, ran

from libdsec import DSecClient
from libdsec.errors import (
    CommandNotStartedError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PathNotFoundError,
    UnavailableError,
    UnsupportedOperationError,
)
from libdsec.protocol.calls import Empty, SandboxRequest
from libdsec.protocol.exec import (
    ExecAnswer,
    OutputInfo,
    SessionCloseRequest,
    SessionInfo,
    SessionOpenRequest,
    SessionRunRequest,
)
from libdsec.protocol.files import (
    FileAnswer,
    FileExtractRequest,
    FileListRequest,
    FileMoveRequest,
    FileReadRequest,
    FileRequest,
    FileWriteRequest,
)
from libdsec.protocol.frames import STDOUT
from libdsec.protocol.steps import StepTag
from libdsec.testing import FakeCall, FakeServer


def test_a_program_that_runs_again_goes_on_where_it_was(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        ran(log, "main/1", 1, "a")
        ran(log, "main/1", 2, "b")

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            return OK

        async with await client.attach("r", job="j", labels={"a": "b"}, pause_after=5, stop_after=6) as rollout:
            sandbox = await rollout.run_container(ARGS)
            assert sandbox.id == ID
            results = [await sandbox.run([name]) for name in ("a", "b", "c")]
            assert [result.replayed for result in results] == [True, True, False]
            assert [result.stdout for result in results] == ["out", "out", ""]
            assert log.asked() == [("exec", StepTag("main/1", 3, 1))]
            assert (rollout.id, rollout.epoch, rollout.recorded, rollout.replayed) == ("r", 1, 3, 3)
        take = server.calls[0][1]
        assert (take.kind, take.name, take.job, take.labels, take.pause_after_s) == ("rollout", "r", "j", {"a": "b"}, 5)
        assert server.calls[-1][0] == "lease.release"

    with_fake(use)


@pytest.mark.parametrize("failure", [UnavailableError, OutcomeUnknownError])
def test_a_call_whose_recorded_output_cannot_be_read_may_be_said_again(with_fake, fake_log, failure):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        log.record("main/1", 1, "exec", command("a"), OK, bytes(10_000))
        ran(log, "main/1", 2, "b")
        sandbox = await (await attached(client, log)).run_container(ARGS)

        @server.answers("log.output")
        async def _(call: FakeCall) -> Empty:
            raise failure("cannot tell")

        with pytest.raises(UnavailableError):
            await sandbox.run(["a"])
        server.answers("log.output")(log._output)
        assert (await sandbox.run(["a"])).stdout_bytes == bytes(10_000)
        assert (await sandbox.run(["b"])).replayed
        assert log.asked() == []

    with_fake(use)


def test_a_download_whose_recorded_bytes_cannot_be_read_may_be_said_again(with_fake, fake_log, tmp_path):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        content, there = os.urandom(10_000), FileAnswer(info=ENTRY)
        log.record("main/1", 1, "file.archive", FileRequest(ID, "d"), FileAnswer(10_000, 7), content)
        log.record("main/1", 2, "file.stat", FileRequest(ID, "f", follow=True), there)
        log.record("main/1", 3, "file.read", FileReadRequest(ID, "f"), FileAnswer(10_000), content)
        ran(log, "main/1", 4, "a")
        sandbox = await (await attached(client, log)).run_container(ARGS)
        for move in (sandbox.files.archive, sandbox.files.download):
            path = "d" if move == sandbox.files.archive else "f"

            @server.answers("log.output")
            async def _(call: FakeCall) -> Empty:
                raise UnavailableError("cannot tell")

            with pytest.raises(UnavailableError):
                await move(path, tmp_path / path)
            server.answers("log.output")(log._output)
            await move(path, tmp_path / path)
            assert (tmp_path / path).read_bytes() == content
        assert (await sandbox.run(["a"])).replayed
        assert log.asked() == []

    with_fake(use)


def test_tracks_sessions_and_keys_are_met_again(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        created(log, "worker", 1)
        ran(log, "main/1/side", 1, "a")
        ran(log, "worker/1", 1, "b")
        ran(log, "key:k", 1, "c")
        log.record("main/1", 1, "session.open", SessionOpenRequest(ID, ("/bin/sh",)), SessionInfo(4, 100))
        log.record("main/1/1", 1, "session.run", SessionRunRequest(ID, 4, "cd /", limit=LIMIT), OK, b"out")
        log.record("main/1/1", 2, "session.close", SessionCloseRequest(ID, 4), Empty())
        ran(log, "other", 1, "d")
        rollout = await attached(client, log)
        sandbox = await rollout.run_container(ARGS)
        assert (await sandbox.track("side").run(["a"])).replayed
        worker = await rollout.track("worker").run_container(ARGS)
        assert (await worker.run(["b"])).replayed
        assert (await worker.run(["c"], key="k")).replayed
        assert (await sandbox.run(["c"], key="k")).replayed
        async with sandbox.session() as session:
            assert (await session.run("cd /")).replayed
        assert log.asked() == []
        assert (rollout.recorded, rollout.replayed) == (8, 9)

    with_fake(use)


def test_creates_with_a_key_and_rollouts_with_a_track(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log, "key:k")
        ran(log, "key:k/1", 1, "a")
        rollout = await attached(client, log)
        sandbox = await rollout.track("x").track("y").run_container(ARGS, key="k")
        assert (await sandbox.run(["a"])).replayed
        with pytest.raises(InvalidArgumentError):
            rollout.track("7")
        with pytest.raises(UnsupportedOperationError, match="run_container"):
            _ = rollout.sandbox
        with pytest.raises(InvalidArgumentError, match="DSecContainerRunArgs"):
            await rollout.run_container({})

    with_fake(use)


def test_nothing_is_kept_of_sandboxes_and_sessions_that_are_over(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        fake_log(server)
        answer_all(server)
        rollout = await client.attach("r")
        for _ in range(3):
            async with await rollout.run_container(ARGS) as sandbox:
                await sandbox.track("a").run(["true"])
                async with sandbox.session() as session:
                    await session.run("true")
            await sandbox.track("a").run(["true"])  # a handle that is still there goes on
        assert list(rollout._scope._tracks) == ["main"]
        for _ in range(2):
            await (await rollout.run_container(ARGS, key="k")).run(["true"])
        said = [(step.track, step.n) for step in server.steps if step is not None and step.track != "key:k"]
        assert len(said) == len(set(said))
        assert said[-2:] == [("key:k/1", 1), ("key:k/1", 2)]

    with_fake(use)


def test_a_sandbox_is_attached_by_its_id(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        ran(log, "main", 1, "a")
        rollout = await client.attach(ID)
        assert server.calls[0][1].kind == "sandbox"
        assert (await rollout.sandbox.run(["a"])).replayed
        with pytest.raises(UnsupportedOperationError, match="attach a rollout"):
            await rollout.run_container(ARGS)
        with pytest.raises(InvalidArgumentError, match="at its create"):
            await client.attach(ID, job="j")

    with_fake(use)


def test_files_are_told_again(with_fake, fake_log, tmp_path):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        content, listing = os.urandom(100_000), [ENTRY, msgspec.structs.replace(ENTRY, path="g")]
        joined = msgspec.msgpack.encode(listing[:1]) + msgspec.msgpack.encode(listing[1:])
        tar = tmp_path / "in.tar"
        tar.write_bytes(b"tar")
        one = FileAnswer(3, 1, info=ENTRY)
        missing = PathNotFoundError("cannot find it", path="no", errno=2)
        steps = [
            ("file.write", FileWriteRequest(ID, "f", mode=MODE), one, b"", hashlib.sha256(b"abc").digest()),
            ("file.read", FileReadRequest(ID, "f", length=(64 << 20) + 1), FileAnswer(100_000), content, b""),
            ("file.stat", FileRequest(ID, "f"), one, b"", b""),
            ("file.stat", FileRequest(ID, "no"), missing, b"", b""),
            ("file.list", FileListRequest(ID, "d", limit=int("100000")), FileAnswer(entries=2), joined, b""),
            ("file.mkdir", FileRequest(ID, "d", recursive=True), FileAnswer(), b"", b""),
            ("file.move", FileMoveRequest(ID, "a", "b"), FileAnswer(), b"", b""),
            ("file.remove", FileRequest(ID, "b"), FileAnswer(), b"", b""),
            ("file.extract", FileExtractRequest(ID, "d"), one, b"", hashlib.sha256(b"tar").digest()),
            ("file.stat", FileRequest(ID, "f", follow=True), one, b"", b""),
            ("file.read", FileReadRequest(ID, "f"), FileAnswer(100_000), content, b""),
            ("file.archive", FileRequest(ID, "d"), FileAnswer(100_000, 7), content, b""),
        ]
        for n, (method, args, answer, stdout, digest) in enumerate(steps, 1):
            log.record("main/1", n, method, args, answer, stdout, input_digest=digest)
        files = (await (await attached(client, log)).run_container(ARGS)).files
        assert await files.write("f", b"abc") == 3
        assert await files.read("f") == content
        assert await files.stat("f") == ENTRY
        assert not await files.exists("no")
        assert list(await files.list("d")) == listing
        await files.mkdir("d", parents=True)
        await files.move("a", "b")
        await files.remove("b")
        assert (await files.extract(tar, "d")).bytes == 3
        moved: list[int] = []
        assert (await files.download("f", tmp_path / "out", progress=moved.append)).bytes == 100_000
        assert (tmp_path / "out").read_bytes() == content
        assert moved[-1] == 100_000
        assert (await files.archive("d", tmp_path / "d.tar")).entries == 7
        assert log.asked() == []

    with_fake(use)


def test_the_sandbox_itself_is_told_again(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        for n, verb in enumerate(("inspect", "pause", "resume", "stop"), 1):
            state = msgspec.structs.replace(INFO, state=verb)
            log.record("main/1", n, f"sandbox.{verb}", SandboxRequest(ID), state)
        async with await (await attached(client, log)).run_container(ARGS) as sandbox:
            seen = [await sandbox.info(), await sandbox.pause(), await sandbox.resume()]
        assert [info.state for info in seen] == ["inspect", "pause", "resume"]
        assert log.asked() == []

    with_fake(use)


def test_an_error_is_an_answer_too(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        error = CommandNotStartedError("cannot start", kind="not_found", errno=2, stage="exec")
        log.record("main/1", 1, "exec", command("nope"), error)
        ran(log, "main/1", 2, "a")
        sandbox = await (await attached(client, log)).run_container(ARGS)
        with pytest.raises(CommandNotStartedError, match="cannot start") as caught:
            await sandbox.run(["nope"])
        assert caught.value.details == {**error.details, "replayed": True}
        assert (await sandbox.run(["a"])).replayed

    with_fake(use)


def test_large_outputs_are_fetched(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        out, err = os.urandom(700_000), b"e" * 10
        answer = ExecAnswer("exited", 0, stdout=OutputInfo(900_000, 350_000, 350_000), stderr=OutputInfo(10, 10))
        log.record("main/1", 1, "exec", command("a"), answer, out, err)
        sandbox = await (await attached(client, log)).run_container(ARGS)
        result = await sandbox.run(["a"])
        assert (result.stdout_bytes, result.stderr_bytes) == (out, err)
        assert (result.truncated, result.replayed, result.stdout_total) == (True, True, 900_000)

    with_fake(use)


def test_a_step_that_still_runs_is_joined(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        log.record("main/1", 1, "exec", command("a"), state="running")

        @server.answers("exec")
        async def _(call: FakeCall) -> ExecAnswer:
            await call.send(STDOUT, b"out")
            return OK

        sandbox = await (await attached(client, log)).run_container(ARGS)
        assert (await sandbox.run(["a"])).stdout == "out"
        assert log.asked() == [("exec", StepTag("main/1", 1, 1))]

    with_fake(use)


def test_a_log_is_read_in_spite_of_losses(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log)
        for n in range(1, 12):
            ran(log, "main/1", n, "a")
        whole, dropped = server._handlers["log.read"], []

        @server.answers("log.read")
        async def _(call: FakeCall):
            if len(dropped) < 3:
                dropped.append(call.args.after)
                call.args = msgspec.structs.replace(call.args, limit=4)
                await whole(call)
                server.drop()
                await asyncio.Event().wait()
            return await whole(call)

        rollout = await attached(client, log)
        assert rollout.recorded == 12
        assert len(dropped) == 3

    with_fake(use)


def test_how_a_sandbox_was_made_is_no_step_of_a_program(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        created(log, "create")
        ran(log, "main", 1, "a")
        rollout = await client.attach(ID)
        assert rollout.recorded == 1
        assert (await rollout.sandbox.run(["a"])).replayed
        with pytest.raises(InvalidArgumentError, match="cannot use track 'create'"):
            rollout.track("create")

    with_fake(use)


def test_twenty_thousand_steps(with_fake, fake_log):
    async def use(server: FakeServer, client: DSecClient) -> None:
        log = fake_log(server)
        log.page = 200
        created(log)
        for n in range(1, 20_001):
            ran(log, "main/1", n, "echo", str(n))
        rollout = await attached(client, log)
        sandbox = await rollout.run_container(ARGS)
        for n in range(1, 20_001):
            assert (await sandbox.run(["echo", str(n)])).replayed
        assert rollout.replayed == 20_001
        assert log.asked() == []

    with_fake(use)
