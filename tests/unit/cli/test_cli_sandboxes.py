"""`dsec run`, `create`, `exec`, `ls`, `inspect`, `logs`, `stop`: what they send, print and end with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from libdsec.protocol.spec import MIB


def test_run_streams_and_ends_with_the_commands_code(node):
    result = node.run("run", "--", "exit", "7")
    assert (result.exit_code, result.stdout, result.stderr) == (7, "out\n", "err\n")
    assert node.sandboxes["n" * 24] == "stopped"
    assert node.request("exec").stream
    assert node.request("sandbox.create").spec.ttl_idle_s == 60  # for when the command is killed


def test_run_keeps_the_sandbox_when_told_to(node):
    result = node.run("run", "--keep", "exit", "0")
    assert result.exit_code == 0
    assert "n" * 24 in result.stderr
    assert node.sandboxes["n" * 24] == "running"
    assert node.request("sandbox.create").spec.ttl_idle_s is None


def test_every_option_of_run_goes_out(node):
    options = (
        "--image debian:12 --workspace repo/x:v1 --toolkit t:1 --toolkit t:2 --memory 1.5g --cpus 0.5 --pids 9 "
        "--disk 100m --disk-inodes 77 -e A=1 -e B=x=y -u nobody -w /srv --hostname box -l task=7 --ttl 10m "
        "--deadline 2h --nested-user-namespaces --timeout 30s"
    )
    assert node.run("run", *options.split(), "--", "exit", "0").exit_code == 0
    spec = node.request("sandbox.create").spec
    assert (spec.workspace, spec.toolkits, spec.env, spec.labels) == (
        "repo/x:v1",
        ("t:1", "t:2"),
        {"A": "1", "B": "x=y"},
        {"task": "7"},
    )
    limits = spec.limits
    assert (limits.memory_bytes, limits.cpu_cores, limits.pids) == (1536 * MIB, 0.5, 9)
    assert (limits.disk_bytes, limits.disk_inodes) == (100 * MIB, 77)
    assert (spec.user, spec.cwd, spec.hostname, spec.ttl_idle_s, spec.deadline_s) == (
        "nobody",
        "/srv",
        "box",
        600,
        7200,
    )
    assert spec.nested_user_namespaces
    assert node.request("exec").timeout_s == 30


def test_options_after_the_command_are_the_commands(node):
    node.run("run", "cat", "--image", "-x")
    assert node.request("exec").argv == ("cat", "--image", "-x")


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        (["signal", "15"], 143, ""),
        (["signal", "9"], 137, "memory"),
        (["sleep"], 124, "time was over"),
        (["nope"], 127, "no such program"),
    ],
)
def test_ends_that_are_no_exit(node, command, code, told):
    result = node.run("run", "--", *command)
    assert result.exit_code == code
    assert told in result.stderr
    assert node.sandboxes["n" * 24] == "stopped"


def test_run_as_json(node):
    result = node.run("run", "--json", "--", "exit", "3")
    answer = json.loads(result.stdout)
    assert result.exit_code == answer["exit_code"] == 3
    assert (answer["stdout"], answer["stderr"], answer["truncated"]) == ("out\n", "err\n", False)
    assert not node.request("exec").stream
    assert json.loads(node.run("run", "--json", "-i", "cat", input="given").stdout)["stdout"] == "given"
    assert node.run("run", "--json", "-t", "cat").exit_code == 64


def test_an_error_as_json_and_as_a_line(node):
    result = node.run("run", "--image", "nope:1", "--json", "--", "exit", "0")
    assert (result.exit_code, json.loads(result.stdout)["error"]["code"]) == (66, "image_not_found")
    result = node.run("run", "--image", "nope:1", "--", "exit", "0")
    assert result.exit_code == 66
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "dsec: cannot find image nope:1",
        "      see `dsec image ls`, or make one with `dsec image build`",
    ]


def test_an_error_cannot_move_the_cursor_or_pass_for_another(node):
    result = node.run("inspect", "no\x1b[31m\ndsec: all is well")
    assert result.exit_code == 66
    assert "\x1b" not in result.stderr
    assert result.stderr.count("\ndsec:") == 0


def test_without_an_image_there_must_be_one(node):
    node.images.clear()
    result = node.run("run", "exit", "0")
    assert (result.exit_code, "dsec image build" in result.stderr) == (66, True)


@pytest.mark.parametrize(
    "bad", [["--memory", "lots"], ["--timeout", "-1"], ["--ttl", "0"], ["--cpus", "x"], ["--nope"]]
)
def test_wrong_usage(node, bad):
    assert node.run("run", *bad, "exit", "0").exit_code == 2
    assert node.server.calls == []


def test_a_pair_that_is_none(node):
    result = node.run("run", "-e", "NAME", "exit", "0")
    assert (result.exit_code, "NAME=VALUE" in result.stderr) == (64, True)


def test_create_prints_the_id(node):
    assert node.run("create", "--ttl", "5m").stdout == "n" * 24 + "\n"
    assert node.json("create")["id"] == "n" * 24


def test_exec_by_a_unique_beginning(node):
    assert node.run("exec", "x", "exit", "0").exit_code == 0
    assert node.request("exec").sandbox == f"{'xyz':0<24}"
    result = node.run("exec", "ab", "exit", "0")
    assert (result.exit_code, "2 ids begin so" in result.stderr) == (64, True)
    result = node.run("exec", "q", "exit", "0")
    assert (result.exit_code, "no id begins so" in result.stderr) == (66, True)


@pytest.mark.parametrize("redirection", ["</dev/null", "<&-"])
def test_a_command_that_never_started_is_one_line_with_standard_input_too(node, redirection):
    """As a process, since it reads the descriptor itself."""
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "dsec", "exec", "-i", "xyz", "nope"]
    environment = {**os.environ, "DSEC_URL": node.url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (127, "dsec: cannot run 'nope': no such program\n")


@pytest.mark.parametrize("arguments", [["ls"], ["ls", "--json"], ["exec", "xyz", "exit", "0"]])
def test_output_that_nobody_can_take(node, arguments):
    """Processes, all at once: each takes long to start."""
    ends = {
        ">&-": (0, ""),
        "<&- >&- 2>&-": (0, ""),
        ">/dev/full": (74, "dsec: cannot go on: [Errno 28] No space left on device\n"),
        "| true": (141, ""),
    }

    def run(redirection):
        script = f'set -o pipefail; "$@" {redirection}'
        command = ["bash", "-c", script, "bash", sys.executable, "-m", "dsec", *arguments]
        environment = {**os.environ, "DSEC_URL": node.url}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr.removeprefix("err\n")

    with ThreadPoolExecutor(len(ends)) as pool:
        assert dict(zip(ends, pool.map(run, ends), strict=True)) == ends


def test_a_beginning_means_what_follows_the_node_and_what_still_runs(node):
    node.sandboxes = {f"{'nodename' + rest:0<24}": state for rest, state in {"k1": "stopped", "k2": "running"}.items()}
    assert node.run("exec", "k", "exit", "0").exit_code == 0
    assert node.request("exec").sandbox == f"{'nodenamek2':0<24}"
    assert node.run("exec", "nodename", "exit", "0").exit_code == 0


def test_exec_passes_env_user_cwd(node):
    node.run("exec", "-e", "A=1", "-u", "1000", "-w", "/x", "xyz", "--", "exit", "0")
    request = node.request("exec")
    assert request.argv == ("exit", "0")
    assert (request.env, request.user, request.cwd) == ({"A": "1"}, "1000", "/x")


def test_a_terminal_needs_a_terminal(node):
    for command in (["exec", "-t", "xyz", "exit", "0"], ["shell", "xyz"]):
        result = node.run(*command)
        assert (result.exit_code, "standard input is none" in result.stderr) == (64, True)


def test_ls(node):
    lines = node.run("ls").stdout.splitlines()
    assert lines[0].split() == ["ID", "IMAGE", "STATE", "AGE", "UNUSED", "MEMORY", "CPUS", "JOB", "ROLLOUT", "LABELS"]
    assert len(lines) == 4
    assert "\x1b" not in lines[1]  # what a label holds cannot move the cursor
    assert node.run("ls", "-q").stdout.split() == list(node.sandboxes)
    assert [info["id"] for info in node.json("ls")] == list(node.sandboxes)
    node.run("stop", "abc")
    assert len(node.json("ls")) == 2
    assert len(node.json("ls", "--all")) == 3


def test_inspect_and_logs(node):
    told = node.run("inspect", "xyz").stdout
    assert "debian:12" in told
    assert "limits" not in told, "nothing is said of it"
    assert "memory_bytes  4 MiB" in told
    assert "created_at    19" in told
    assert node.json("inspect", "xyz")["spec"]["image"] == "debian:12"
    assert "created" in node.run("logs", "xyz").stdout
    assert node.json("logs", "xyz")[0]["event"] == "created"
    assert node.run("logs", "-n", "5", "xyz").exit_code == 0
    assert node.request("sandbox.logs").limit == 5


def test_stop(node):
    result = node.run("stop", "abc", "z" * 24, "xyz")
    assert result.exit_code == 66
    assert result.stdout.split() == [f"{'abc':0<24}", f"{'xyz':0<24}"]
    assert "z" * 24 in result.stderr
    assert node.run("stop", "--all").stdout.split() == [f"{'abd':0<24}"]
    assert node.run("stop").exit_code == node.run("stop", "--all", "abc").exit_code == 64


def test_no_server(node):
    node.url = "unix:///nonexistent/api.sock"
    result = node.run("ls")
    assert (result.exit_code, "dsec serve" in result.stderr) == (69, True)
