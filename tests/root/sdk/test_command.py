"""The command `dsec` against a real node: exit codes, terminals, copies."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from struct import pack

import pytest

from libdsec import OutputLimit
from libdsec.sync import Sandbox

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap")


class Terminal:
    """The command on a terminal of ours, as a person would have it."""

    def __init__(self, url: str, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(24, 80)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        environment = {**os.environ, "DSEC_URL": url, "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dsec", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        self.seen = b""

    def resize(self, rows: int, cols: int) -> None:
        ioctl(self.master, termios.TIOCSWINSZ, pack("HHHH", rows, cols, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 30
        while text.encode() not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 1)[0]:
                self.seen += os.read(self.master, 65536)
        self.seen = self.seen.split(text.encode(), 1)[1]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(url: str) -> Iterator[object]:
    made: list[Terminal] = []

    def open_terminal(*arguments: str) -> Terminal:
        made.append(Terminal(url, *arguments))
        return made[-1]

    yield open_terminal
    for each in made:
        each.close()


def test_a_shell_is_a_terminal(terminal, sandbox: Sandbox):
    shell = terminal("shell", sandbox.id[:20])
    shell.type("stty size; tty\n")
    shell.wait_for("24 80\r\n")
    shell.wait_for("/dev/pts/")
    shell.resize(50, 132)
    os.kill(shell.process.pid, signal.SIGWINCH)  # our terminal is not its controlling one
    shell.type("sleep 0.2; stty size\n")
    shell.wait_for("50 132\r\n")
    shell.type("sh -c 'echo going; exec sleep 1000'\n")
    shell.wait_for("going\r\n")
    shell.type("\x03")
    shell.type("echo still $((40 + 2))\n")
    shell.wait_for("still 42")
    shell.type("exit 7\n")
    assert shell.process.wait(30) == 7
    assert termios.tcgetattr(shell.slave) == shell.before  # as it was


def test_a_terminal_is_restored_when_the_command_is_killed_there(terminal, sandbox: Sandbox):
    shell = terminal("exec", "-it", sandbox.id, "--", "sh", "-c", "echo ready; kill -9 $$")
    shell.wait_for("ready")
    assert shell.process.wait(30) == 137
    assert termios.tcgetattr(shell.slave) == shell.before


def test_exit_codes(dsec, sandbox: Sandbox):
    assert dsec("exec", sandbox.id, "--", "sh", "-c", "exit 9").returncode == 9
    assert dsec("exec", sandbox.id, "--", "sh", "-c", "kill -15 $$").returncode == 143
    assert dsec("exec", "--timeout", "1s", sandbox.id, "--", "sleep", "60").returncode == 124
    missing = dsec("exec", sandbox.id, "--", "no-such-program")
    assert missing.returncode == 127
    assert missing.stderr.startswith("dsec: cannot start")
    assert dsec("exec", "-w", "/no/such", sandbox.id, "--", "true").returncode == 127
    assert dsec("run", "--image", "no:image", "--", "true").returncode == 66


def test_run_leaves_nothing(dsec, client):
    before = {info.id for info in client.list()}
    done = dsec("run", "--memory", "128m", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    answer = json.loads(dsec("run", "--json", "--", "id", "-u").stdout)
    assert (answer["stdout"], answer["ended"]) == ("0\n", "exited")
    assert {info.id for info in client.list()} == before


def test_stdin_is_passed_on(dsec, sandbox: Sandbox, tmp_path: Path):
    data = "0123456789abcdef" * 100_000
    (tmp_path / "data").write_text(data)
    with open(tmp_path / "data") as file:
        assert dsec("exec", "-i", sandbox.id, "--", "cat", stdin=file).stdout == data
    assert dsec("exec", "-i", sandbox.id, "--", "wc", "-c", input=data).stdout == f"{len(data)}\n"
    assert dsec("exec", "-i", sandbox.id, "--", "head", "-c", "3", input=data).stdout == "012"


def test_an_interrupt_is_the_commands(url: str, image: str, client):
    before = {info.id for info in client.list()}
    script = "trap 'echo caught; exit 33' INT; echo ready; while :; do sleep 0.1; done"
    process = subprocess.Popen(
        [sys.executable, "-m", "dsec", "run", "--image", image, "--", "sh", "-c", script],
        env={**os.environ, "DSEC_URL": url},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "caught\n"
        assert process.wait(30) == 33
    assert {info.id for info in client.list()} == before


def test_a_reader_that_goes_away(url: str, sandbox: Sandbox):
    command = f"{sys.executable} -m dsec exec {sandbox.id} -- yes | head -n 1"
    done = subprocess.run(command, shell=True, env={**os.environ, "DSEC_URL": url}, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"y\n", b"")


def test_cp_both_ways(dsec, sandbox: Sandbox, tmp_path: Path):
    tree = tmp_path / "tree"
    (tree / "deep/er").mkdir(parents=True)
    (tree / "deep/er/big").write_bytes(os.urandom(3_000_000))
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "link").symlink_to("run.sh")
    assert dsec("cp", str(tree), f"{sandbox.id[:22]}:/copied").returncode == 0
    assert sandbox.run(["/copied/link"]).stdout == "ran\n"
    assert dsec("cp", f"{sandbox.id}:/copied", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back/deep/er/big").read_bytes() == (tree / "deep/er/big").read_bytes()
    assert os.readlink(tmp_path / "back/link") == "run.sh"
    assert dsec("cp", str(tree / "run.sh"), f"{sandbox.id}:/copied/deep").returncode == 0
    assert sandbox.files.read("/copied/deep/run.sh") == (tree / "run.sh").read_bytes()
    told = json.loads(dsec("cp", "--json", f"{sandbox.id}:/copied/deep/run.sh", str(tmp_path)).stdout)
    assert told["bytes"] == (tmp_path / "run.sh").stat().st_size
    assert dsec("cp", f"{sandbox.id}:/none", str(tmp_path / "none")).returncode == 66


def test_what_leads_out_is_left_out(dsec, sandbox: Sandbox, tmp_path: Path):
    sandbox.run_shell(
        "mkdir -p /evil && cd /evil && ln -sf /etc/passwd abs && ln -sf ../../.. up && mkfifo p; echo x > f"
    ).check()
    done = dsec("cp", f"{sandbox.id}:/evil", str(tmp_path / "evil"))
    assert done.returncode == 0
    assert "left out 3 entries" in done.stderr
    assert os.listdir(tmp_path / "evil") == ["f"]


def test_a_link_to_a_device_does_not_fill_our_disk(dsec, sandbox: Sandbox, tmp_path: Path):
    sandbox.run_shell("ln -sf /dev/zero /result").check()
    done = dsec("cp", f"{sandbox.id}:/result", str(tmp_path / "result"))
    assert (done.returncode, "of type char" in done.stderr) == (64, True)
    sandbox.run_shell("truncate -s 300M /sparse").check()
    assert dsec("cp", f"{sandbox.id}:/sparse", str(tmp_path / "sparse")).returncode == 0
    assert (tmp_path / "sparse").stat().st_size == 300 << 20
    assert (tmp_path / "sparse").stat().st_blocks * 512 < 1 << 20


def test_a_copy_that_is_terminated_leaves_nothing(url: str, sandbox: Sandbox, tmp_path: Path):
    sandbox.run_shell("head -c 1G /dev/zero | tr '\\0' a > /large", limit=OutputLimit(0, 0)).check()
    command = [sys.executable, "-m", "dsec", "cp", f"{sandbox.id}:/large", str(tmp_path / "large")]
    with subprocess.Popen(command, env={**os.environ, "DSEC_URL": url}) as process:
        deadline = time.monotonic() + 60
        while not os.listdir(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.terminate()
        assert process.wait(60) == 143
    assert os.listdir(tmp_path) == []
    sandbox.files.remove("/large")


def test_devices_are_left_out_of_an_upload(dsec, sandbox: Sandbox, tmp_path: Path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("x")
    os.mknod(tmp_path / "tree/null", 0o20666, os.makedev(1, 3))
    done = dsec("cp", str(tmp_path / "tree"), f"{sandbox.id}:/uploaded")
    assert (done.returncode, "left out 1 entries" in done.stderr) == (0, True)
    assert sandbox.run(["ls", "/uploaded"]).stdout == "file\n"
