"""`dsec log` and `dsec replay`: what they show, write and end with."""

from __future__ import annotations

import json
from contextlib import aclosing

import msgspec
import pytest

from dsec.cli.output import table
from dsec.replay.document import parse
from libdsec.client import DSecClient
from libdsec.log import CommandLog
from libdsec.protocol.calls import CreateRequest
from libdsec.protocol.errors import CommandNotStartedError, NotFoundError, OutcomeUnknownError, UnavailableError
from libdsec.protocol.exec import ExecAnswer, ExecRequest, OutputInfo, SessionRunRequest
from libdsec.protocol.files import FileAnswer, FileMoveRequest, FileRequest, FileWriteRequest
from libdsec.protocol.frames import STDERR, STDOUT
from libdsec.protocol.jobs import LeaseInfo, RolloutList
from libdsec.protocol.spec import SandboxInfo, SandboxSpec
from libdsec.protocol.steps import LogReadAnswer, OutputRecord, Step, request_digest
from libdsec.testing import FakeCall, FakeServer

BOX = f"{'xyz':0<24}"
INFO = SandboxInfo(BOX, SandboxSpec("debian:12"), "running", None, 0.0, 0.0, "node")
LONG = b"x" * 5000


class Logs:
    """The fake server's logs, by scope."""

    def __init__(self, node) -> None:
        self.scopes: dict[str, list[Step]] = {}
        self.rollouts = [LeaseInfo("rollout", "empty", 1, None, 0, 0.0, 0.0)]
        self.fail_after: int | None = None
        answers = node.server.answers

        @answers("log.read")
        async def _(call: FakeCall) -> LogReadAnswer:
            asked = call.args
            found = [s for s in self.scopes.get(asked.scope, []) if s.seq > asked.after]
            found = [s for s in found if asked.track in (None, s.track) and asked.sandbox in (None, s.sandbox)]
            if asked.limit:
                found = found[-asked.limit :] if asked.last else found[: asked.limit]
            for step in found:
                if self.fail_after is not None and step.seq > self.fail_after:
                    raise NotFoundError("cannot read on: it is gone")
                small = step.stdout.size + step.stderr.size <= 4096
                bare = msgspec.structs.replace(step, stdout=OutputRecord(step.stdout.size))
                await call.send_value(STDOUT, [step if small else bare])
            return LogReadAnswer(len(found), 0)

        @answers("log.output")
        async def _(call: FakeCall) -> Step:
            for step in self.scopes.get(call.args.scope, []):
                if (step.track, step.n) == (call.args.track, call.args.n):
                    await call.send(STDOUT, step.stdout.data or b"")
                    await call.send(STDERR, step.stderr.data or b"")
                    return msgspec.structs.replace(
                        step, request=msgspec.Raw(b"\xc0"), stdout=OutputRecord(step.stdout.size), stderr=OutputRecord()
                    )
            raise NotFoundError(f"cannot find step {call.args.track}#{call.args.n}")

        @answers("rollout.list")
        async def _(call: FakeCall) -> RolloutList:
            return RolloutList(tuple(self.rollouts))

    def add(self, scope, method, args, answer=None, out=b"", state="result", **fields) -> None:
        steps = self.scopes.setdefault(scope, [])
        seq = len(steps) + 1
        body = answer.body() if state == "error" else answer
        values = {
            "track": "main",
            "n": seq,
            "sandbox": BOX,
            "began_at": 1e9 + seq,
            "ended_at": 1e9 + seq + 0.25,
            "stdout": OutputRecord(len(out), out),
            **fields,
        }
        step = Step(
            seq=seq,
            method=method,
            digest=request_digest(method, args),
            state=state,
            request=msgspec.Raw(msgspec.msgpack.encode(args)),
            answer=msgspec.Raw(msgspec.msgpack.encode(body)),
            **values,
        )
        steps.append(step)

    def exec(self, scope, *argv, code=0, out=b"", **fields) -> None:
        self.add(scope, "exec", ExecRequest(BOX, argv), ended(code, out), out, **fields)


def ended(code, out=b""):
    return ExecAnswer("exited", code, stdout=OutputInfo(len(out), len(out)))


@pytest.fixture
def logs(node):
    made = Logs(node)
    made.add(BOX, "sandbox.create", CreateRequest(SandboxSpec("debian:12")), INFO, track="create", n=1)
    made.exec(BOX, "cat", out=b"")
    made.exec(BOX, "exit", "3", code=3, out=b"out\n")
    made.exec("run-1", "echo", "\x1b[31m", out=b"\xff\x1b[2J")
    return made


def test_each_step_is_a_row(node, logs):
    add = logs.add
    add(BOX, "exec", ExecRequest(BOX, ("/bin/sh", "-c", "make " * 40)), ExecAnswer("signaled", signal=9, oom_kills=1))
    add(BOX, "exec", ExecRequest(BOX, ("a b", "c")), ExecAnswer("timed_out"))
    add(BOX, "exec", ExecRequest(BOX, ("x",)), state="running", ended_at=None)
    add(BOX, "exec", ExecRequest(BOX, ("y",)), state="unknown")
    refused = CommandNotStartedError("cannot", kind="not_found")
    add(BOX, "exec", ExecRequest(BOX, ("nope",)), refused, state="error")
    add(BOX, "session.run", SessionRunRequest(BOX, 2, "pwd"), ended(0), out=LONG)
    add(BOX, "file.move", FileMoveRequest(BOX, "/a", "/b"), FileAnswer())
    add(BOX, "exec", ExecRequest(BOX, ("top",), pty=True), ended(0), opaque="it was a terminal")
    lines = node.run("log", "xyz").stdout.splitlines()
    assert lines[0].split() == ["STEP", "TIME", "TOOK", "WHAT", "OUTCOME", "OUTPUT"]
    rows = [line.split(maxsplit=3) for line in lines[1:]]
    assert [row[0] for row in rows] == ["create#1", *(f"main#{n}" for n in range(2, 12))]
    told = [" ".join(line.split()[3:]) for line in lines[1:]]
    assert told[0] == "250 ms sandbox.create debian:12 ok -"
    assert told[2] == "250 ms exit 3 exit 3 4 B"
    assert "… SIGKILL, out of memory" in told[3]
    assert told[4] == "250 ms 'a b' c timeout -"
    assert told[5] == "- x running -"
    assert told[6].endswith("y unknown -")
    assert told[7].endswith("nope command_not_started -")
    assert told[8].endswith("[2] pwd exit 0 4.88 KiB")
    assert told[9].endswith("file.move /a → /b ok -")
    assert told[10].endswith("top exit 0 not kept")


def test_a_rollout_by_its_name_and_nothing_hostile(node, logs):
    shown = node.run("log", "run-1").stdout
    assert "main#1" in shown
    assert "\x1b" not in shown
    shown = node.run("log", "run-1", "main#1").stdout
    assert "stdout (5 B)" in shown
    assert "\x1b" not in shown
    assert node.run("log", "empty").exit_code == 0
    result = node.run("log", "nothing-of-the-kind")
    assert (result.exit_code, "no rollout" in result.stderr) == (66, True)


def test_a_sandbox_of_a_rollout_has_its_part_of_the_rollouts_log(node, logs):
    logs.exec("run-1", "other", sandbox="o" * 24)
    del logs.scopes[BOX]

    @node.server.answers("sandbox.inspect")
    async def _(call: FakeCall) -> SandboxInfo:
        return msgspec.structs.replace(INFO, rollout="run-1")

    assert len(node.run("log", "xyz").stdout.splitlines()) == 2
    assert node.request("log.read").sandbox == BOX


def test_options_choose_the_steps(node, logs):
    assert len(node.run("log", BOX, "--last", "1").stdout.splitlines()) == 2
    assert len(node.run("log", BOX, "--track", "main").stdout.splitlines()) == 3
    assert node.run("log", BOX, "--last", "0").exit_code == 2


def test_one_step_in_full(node, logs):
    logs.exec(BOX, "long", out=LONG)
    shown = node.run("log", "xyz", "main#4").stdout
    assert "argv         ['long']" in shown
    assert "x" * 5000 in shown
    found = node.json("log", "xyz", "main#4")
    assert (found["stdout"]["size"], found["request"]["argv"]) == (5000, ["long"])
    assert node.run("log", "xyz", "main#9").exit_code == 66
    for bad in ("main", "#1", "main#x"):
        assert node.run("log", "xyz", bad).exit_code == 64


def test_the_document_is_one_that_replay_reads(node, logs):
    logs.exec(BOX, "long", out=LONG)
    sizes = [step.stdout.data for step in parse(node.run("log", BOX, "--json").stdout.encode()).steps]
    assert sizes == [b"", b"", b"out\n", None]
    log = parse(node.run("log", BOX, "--json", "--outputs").stdout.encode())
    assert log.scope == BOX
    written = [msgspec.msgpack.decode(step.request) for step in logs.scopes[BOX]]
    assert [msgspec.msgpack.decode(step.request) for step in log.steps] == written
    assert log.steps[3].stdout.data == LONG
    written = json.loads(node.run("log", "run-1", "--json").stdout)
    assert written["steps"][0]["stdout"] == {"size": 5, "base64": "/xtbMko="}


def test_a_document_that_cannot_be_finished_is_json_and_no_log(node, logs):
    logs.fail_after = 1
    result = node.run("log", BOX, "--json")
    assert (result.exit_code, json.loads(result.stdout)["error"]["code"]) == (66, "not_found")


@pytest.mark.parametrize(
    "options",
    [
        ["--outputs"],
        ["--follow", "--outputs"],
        *(["main#2", *more] for more in (["--track", "a"], ["-n", "1"], ["-f"])),
    ],
)
def test_nothing_that_was_asked_for_is_ignored(node, logs, options):
    assert node.run("log", BOX, *options).exit_code == 64
    assert node.server.calls == []


@pytest.mark.parametrize("form", [[], ["--json"], ["--json", "--outputs"]])
def test_following_prints_a_line_a_step(node, logs, form):
    """The fake server has an end, at which a command that follows ends too."""
    result = node.run("log", BOX, "--follow", *form)
    assert result.exit_code == 0
    assert node.request("log.read").follow
    lines = result.stdout.splitlines()
    assert len(lines) == 3 + (not form)
    if form:
        assert [json.loads(line)["step"] for line in lines] == ["create#1", "main#2", "main#3"]


def replayed(node, tmp_path, scope, *options):
    path = tmp_path / "log.json"
    path.write_text(node.run("log", scope, "--json", "--outputs").stdout)
    return node.run("replay", str(path), *options)


def test_replay_says_what_is_the_same(node, logs, tmp_path):
    del logs.scopes[BOX][2:]
    result = replayed(node, tmp_path, BOX)
    assert result.exit_code == 0, result.stdout + result.stderr
    assert "2 same, 0 different, 0 nondeterministic, 0 skipped" in result.stdout
    assert node.sandboxes["n" * 24] == "stopped"
    assert node.request("sandbox.create").spec.hostname == BOX
    assert node.server.steps[-1].track == "cli"


def test_replay_says_what_is_different(node, logs, tmp_path):
    """The fake program prints on standard error too, which the record has not."""
    logs.add(BOX, "file.write", FileWriteRequest(BOX, "/f"), FileAnswer(1), input_digest=b"\1" * 32)
    logs.exec(BOX, "exit", "0")
    result = replayed(node, tmp_path, BOX)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert "different" in lines[3]
    assert "stderr_total 0 → 4" in lines[3]
    assert "its input is not in the log" in lines[4]
    assert "on the gap of main#4" in lines[5]
    found = json.loads(replayed(node, tmp_path, BOX, "--json").stdout)
    assert found["totals"] == {"same": 2, "different": 2, "nondeterministic": 0, "skipped": 1}
    assert found["steps"][2]["differences"][0] == {"fact": "stderr_total", "recorded": 0, "first": 4, "second": 4}


def test_replay_of_what_nobody_knows_how_to_make(node, logs, tmp_path):
    assert replayed(node, tmp_path, "run-1").exit_code == 64
    assert replayed(node, tmp_path, "run-1", "--image", "debian:12").exit_code == 1
    assert node.request("sandbox.create").spec.image == "debian:12"


def test_replay_keeps_what_it_is_told_to_keep(node, logs, tmp_path):
    del logs.scopes[BOX][2:]
    result = replayed(node, tmp_path, BOX, "--keep")
    assert f"kept for {BOX}: {'n' * 24}" in result.stderr
    assert node.sandboxes["n" * 24] == "running"


def test_replay_from_standard_input_and_from_what_is_no_log(node, logs, tmp_path):
    document = node.run("log", BOX, "--last", "2", "--json").stdout
    assert node.run("replay", "-", "--image", "debian:12", input=document).exit_code == 1
    assert node.run("replay", str(tmp_path / "none")).exit_code == 66
    assert node.run("replay", str(tmp_path)).exit_code == 64
    assert node.run("replay", "-", input="{}").exit_code == 64
    assert node.run("replay", "-", input=b"\xff").exit_code == 64


def test_replay_of_a_lost_server(node, logs, tmp_path):
    @node.server.answers("file.stat")
    async def _(call: FakeCall) -> FileAnswer:
        raise UnavailableError("cannot go on")

    logs.add(BOX, "file.stat", FileRequest(BOX, "/"), FileAnswer())
    assert replayed(node, tmp_path, BOX).exit_code == 69


async def test_following_goes_on_after_a_lost_connection_and_tells_nothing_twice():
    """Two steps, the second of which runs when the connection is lost."""
    readings = []
    encoded = msgspec.msgpack.encode(ExecAnswer("exited", 0))
    args = ExecRequest(BOX, ("x",))

    def step(seq, state):
        return Step(seq, "main", seq, "exec", request_digest("exec", args), state, 1.0, answer=msgspec.Raw(encoded))

    async with FakeServer() as server:

        @server.answers("log.read")
        async def _(call: FakeCall) -> LogReadAnswer:
            if not call.args.follow:
                return LogReadAnswer(0, 0)
            readings.append(call.args.after)
            if len(readings) == 1:
                await call.send_value(STDOUT, [step(1, "result"), step(2, "running"), step(3, "result")])
                server.drop()
            else:
                await call.send_value(STDOUT, [step(2, "running"), step(3, "result")])
                await call.send_value(STDOUT, [step(2, "result"), step(4, "result")])
            return LogReadAnswer(0, 0)

        async with DSecClient(endpoint=server) as client:
            log = await CommandLog.find(client, "run-1")
            async with aclosing(log.follow()) as following:
                told = [(found.seq, found.state) async for found in following]
    assert told == [(1, "result"), (2, "running"), (3, "result"), (2, "result"), (4, "result")]
    assert readings == [0, 1]


async def test_following_what_is_lost_each_time_ends():
    async with FakeServer() as server:

        @server.answers("log.read")
        async def _(call: FakeCall) -> LogReadAnswer:
            server.drop()
            return LogReadAnswer(0, 0)

        async with DSecClient(endpoint=server) as client:
            log = await CommandLog.find(client, "run-1")
            with pytest.raises(OutcomeUnknownError):
                async for _ in log.follow():
                    pass


def test_outcomes_have_colours_on_a_terminal_alone(monkeypatch, capsys):
    shown = [("main#1", "exit 0"), ("main#2", "exit 1")]
    table(("STEP", "OUTCOME"), shown, colours={1: ["32", "31"]})
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    table(("STEP", "OUTCOME"), shown, colours={1: ["32", "31"]})
    assert capsys.readouterr().out.splitlines()[1:] == [
        "main#1  \x1b[32mexit 0 \x1b[0m",
        "main#2  \x1b[31mexit 1 \x1b[0m",
    ]
