"""`dsec pause`, `resume`, `stop --job`, `job`, `ls` by them; `serve --drain`; what the shell completes."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from dsec.cli.main import main
from dsec.config import load
from libdsec.protocol.calls import Empty, ServerInfo
from libdsec.protocol.errors import NotFoundError, SandboxStateError, UnavailableError
from libdsec.protocol.jobs import JobAnswer, JobInfo, JobList, JobProgress, LeaseInfo, RolloutList
from libdsec.protocol.nodes import NodeStatus
from libdsec.protocol.spec import SandboxInfo
from libdsec.testing import FakeCall

JOB = JobInfo("night", {"running": 2, "paused": 1, "stopped": 4}, 1, 5 << 20)
XYZ = f"{'xyz':0<24}"


@pytest.fixture(autouse=True)
def jobs(node):
    answers = node.server.answers

    async def act(call: FakeCall) -> JobAnswer:
        if call.args.job != "night":
            raise NotFoundError("cannot find job")
        for done in range(3):
            call.event(JobProgress(done, 3))
        return JobAnswer(3)

    for verb in ("pause", "resume", "stop"):
        answers(f"job.{verb}")(act)

    @answers("job.list")
    async def _(call: FakeCall) -> JobList:
        return JobList((JOB,))

    @answers("job.inspect")
    async def _(call: FakeCall) -> JobInfo:
        return JOB

    @answers("rollout.list")
    async def _(call: FakeCall) -> RolloutList:
        return RolloutList((LeaseInfo("rollout", "run-1", 3, "night", 12, 0.0, 0.0),))

    async def pause(call: FakeCall) -> SandboxInfo:
        info = node.info(call.args.sandbox)
        if info.id.startswith("abd"):
            raise SandboxStateError("cannot pause it")
        return msgspec.structs.replace(info, state="paused", paused_at=5.0)

    for verb in ("pause", "resume"):
        answers(f"sandbox.{verb}")(pause)


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_sandboxes_by_their_names(node, verb):
    result = node.run(verb, "xyz", "abc", "xyz", "abd")
    assert result.stdout.split() == [XYZ, f"{'abc':0<24}"]
    assert (result.exit_code, "cannot pause it" in result.stderr) == (73, True)
    assert node.json(verb, "xyz")[0]["state"] == "paused"
    assert node.server.steps[-1].track == "cli"
    for bad in ([verb], [verb, "xyz", "--job", "night"]):
        assert node.run(*bad).exit_code == 64


@pytest.mark.parametrize(("verb", "done"), [("pause", "paused"), ("resume", "resumed"), ("stop", "stopped")])
def test_all_of_a_job(node, verb, done):
    assert node.run(verb, "--job", "night").stdout == f"{done} 3 sandboxes of job night\n"
    assert node.json(verb, "--job", "night") == {"done": 3, "failed": {}, "failures": 0}
    assert node.run(verb, "--job", "none").exit_code == 66


def test_failures_of_a_job_are_told_and_counted(node):
    @node.server.answers("job.pause")
    async def _(call: FakeCall) -> JobAnswer:
        return JobAnswer(1, {XYZ: "no\x1b[31m room"}, 7)

    result = node.run("pause", "--job", "night")
    assert result.exit_code == 1
    assert result.stdout == "paused 1 sandbox of job night\n"
    assert result.stderr.splitlines()[0].startswith(f"dsec: {XYZ}: no")
    assert "\x1b" not in result.stderr
    assert "6 more" in result.stderr


def test_stop_takes_one_way_of_choosing(node):
    for bad in (["--job", "night", "xyz"], ["--job", "night", "--all"], []):
        assert node.run("stop", *bad).exit_code == 64


def test_job_ls_and_show(node):
    lines = node.run("job", "ls").stdout.splitlines()
    assert lines[1].split(maxsplit=5) == ["night", "3", "1", "5", "MiB", "1 paused, 2 running, 4 stopped"]
    assert node.run("job", "ls", "-q").stdout == "night\n"
    assert node.json("job", "ls")[0]["memory_bytes"] == 5 << 20
    shown = node.run("job", "show", "night").stdout
    assert "1 paused, 2 running, 4 stopped" in shown
    assert shown.splitlines()[-1].split()[:4] == ["run-1", "12", "held", "3"]
    assert node.json("job", "show", "night")["rollouts"][0]["name"] == "run-1"
    assert node.request("rollout.list").job == "night"


def test_ls_by_job_and_rollout(node):
    node.run("ls", "--job", "night", "--rollout", "run-1")
    assert (node.request("sandbox.list").job, node.request("sandbox.list").rollout) == ("night", "run-1")


def test_ls_and_inspect_tell_of_pauses_and_whose_it_is(node):
    plain = node.info
    node.info = lambda sandbox: msgspec.structs.replace(
        plain(sandbox), state="running", job="night", rollout="run-1", paused_at=5.0, paused_s=3.0, track="main/1"
    )
    row = node.run("ls").stdout.splitlines()[1]
    assert "running for" in row
    assert "night  run-1" in row
    told = node.run("inspect", "xyz").stdout
    for line in ("job               night", "paused since      1970-01-01", "paused before, s  3", "main/1"):
        assert line in told


def test_create_and_run_belong_to_a_job(node):
    node.run("create", "--job", "night")
    assert node.request("sandbox.create").spec.job == "night"
    node.run("run", "--job", "night", "exit", "0")
    assert node.request("sandbox.create").spec.job == "night"
    assert node.run("create", "--job", "no good").exit_code == 64


@pytest.fixture
def ending(node):
    """A server whose process ends when it is told to."""
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    status = NodeStatus("node", "abcdefgh", ("container",), 1, 0, 1, 0, 3, True)

    @node.server.answers("server.info")
    async def _(call: FakeCall) -> ServerInfo:
        return ServerInfo("1", 1, process.pid, status)

    async def end(call: FakeCall) -> Empty:
        process.terminate()
        return Empty()

    node.server.answers("server.drain")(end)
    node.server.answers("server.shutdown")(end)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_drain_waits_for_the_process_and_counts_what_goes_on(node, ending):
    result = node.run("serve", "--drain", "--timeout", "5s")
    assert result.exit_code == 0
    assert f"pid {ending.pid}; 3 sandboxes go on" in result.stdout
    assert ending.poll() is not None
    assert node.request("server.drain").timeout_s == 5


def test_drain_as_json(node, ending):
    assert node.json("serve", "--drain") == {"drained": ending.pid, "sandboxes": 3}


def test_stop_waits_for_the_process(node, ending):
    assert f"pid {ending.pid}" in node.run("serve", "--stop").stdout
    assert ending.poll() is not None


def test_nothing_to_drain(node, monkeypatch):
    node.url = "unix:///nonexistent/api.sock"
    assert node.run("serve", "--drain").stdout == "no server runs\n"


def test_serve_takes_one_wish(node):
    for bad in (
        ["--drain", "--stop"],
        ["--drain", "--background"],
        ["--timeout", "5s"],
        ["--stop", "--timeout", "5s"],
        ["--drain", "--durable"],
    ):
        assert node.run("serve", *bad).exit_code == 64


def test_a_server_that_runs_cannot_be_made_durable(node, ending, monkeypatch):
    monkeypatch.setenv("DSEC_RUN_DIR", node.url.removeprefix("unix://").removesuffix("/api.sock"))
    result = node.run("serve", "--background", "--durable")
    assert (result.exit_code, f"pid {ending.pid}" in result.stderr) == (73, True)


def test_durable_is_of_the_configuration():
    for text, wish in (("true", True), ("1", True), ("false", False), ("0", False)):
        assert load({"DSEC_DURABLE": text}).durable is wish
    assert load({}).durable is False


def asking(words, url):
    """How a shell asks for what may follow."""
    return {
        "_DSEC_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "DSEC_URL": url,
    }


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("dsec exec ab", [f"{'abc':0<24}", f"{'abd':0<24}"]),
        ("dsec stop x", [XYZ]),
        ("dsec pause --job ni", ["night"]),
        ("dsec job show ", ["night"]),
        ("dsec log ru", ["run-1"]),
        ("dsec log xy", [XYZ]),
    ],
)
def test_the_shell_completes_what_the_server_knows(node, words, found, monkeypatch, capfd):
    for name, value in asking(words, node.url).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main()
    told = capfd.readouterr()
    assert (told.out.split(), told.err) == (found, "")


def test_without_a_server_nothing_is_completed_and_none_started(node, tmp_path):
    def completed(url):
        environment = {**os.environ, **asking("dsec exec ab", url), "DSEC_RUN_DIR": str(tmp_path / "run")}
        command = [sys.executable, "-m", "dsec"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        return done.stdout.split()

    assert completed("") == []
    assert not (tmp_path / "run").exists()

    @node.server.answers("sandbox.list")
    async def _(call: FakeCall) -> Empty:
        raise UnavailableError("cannot list")

    assert completed(node.url) == []
