"""Sessions: a shell that keeps its state and that no command can wedge."""

from __future__ import annotations

from typing import Any

import pytest
from conversation import LIMIT, PATH, Call, Conversation
from rig import BY_DESCRIPTORS

from libdsec.protocol.errors import CommandNotStartedError, ConflictError, QuotaExceededError, SessionNotFoundError

pytestmark = BY_DESCRIPTORS


class Session:
    def __init__(self, talk: Conversation, shell: list[str]) -> None:
        self.talk, self.shell = talk, shell
        self.open()

    def open(self) -> None:
        args = {"shell": self.shell, "env": PATH, "cwd": "/tmp", "user": "root"}
        answer = self.talk.do("session.open", args).answer
        self.id, self.pid = answer["session"], answer["pid"]

    def start(self, command: str, **changes: Any) -> Call:
        args = {"session": self.id, "command": command, "timeout_ms": 0, "limit": LIMIT, **changes}
        return self.talk.start("session.run", args)

    def run(self, command: str, **changes: Any) -> Call:
        return self.talk.finish(self.start(command, **changes))

    def code(self, command: str) -> int | None:
        call = self.run(command)
        assert call.answer["ended"] == "exited"
        assert not call.answer["session_ended"]
        assert call.answer["untrusted"]
        code: int | None = call.answer["exit_code"]
        return code

    def close(self) -> None:
        self.talk.do("session.close", {"session": self.id})


@pytest.fixture(params=["/bin/dash", "/bin/bash"])
def session(request: pytest.FixtureRequest, talk: Conversation) -> Any:
    session = Session(talk, [request.param])
    yield session
    session.close()


def test_state_stays(session: Session) -> None:
    session.run("cd /usr; export A=5; greet() { echo hello $1; }; sleep 300 &")
    assert session.run("pwd; echo $A; greet you; jobs").stdout.decode().split("\n")[:3] == ["/usr", "5", "hello you"]
    assert b"Running" in session.run("jobs").stdout
    assert (session.code("false"), session.code("(exit 7)"), session.code("no-such-program")) == (1, 7, 127)


@pytest.mark.parametrize(
    ("command", "stdout"),
    [
        ("for i in 1 2; do\n  echo $i\ndone", b"1\n2\n"),
        ("cat <<END\n 'a' \"b\" $((1+1))\nEND", b" 'a' \"b\" 2\n"),
        ("echo 'it'\\''s' \"$(echo nested)\" # comment", b"it's nested\n"),
        ("echo end\\", b"end\\\n"),
        ("echo a\n\n\necho b\n", b"a\nb\n"),
        ("cat; read x; echo [$x]", b"[]\n"),
        ("printf() { echo mine; }; echo() { :; }; command echo fine", b"fine\n"),
        ("exec 5>/tmp/five; command echo fine", b"fine\n"),
        ("exec 5>&-; command echo fine", b"fine\n"),
        ("set -x; command echo fine", b"fine\n"),
        ("cd /; rm -rf /tmp/gone; mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone; command echo fine", b"fine\n"),
    ],
)
def test_commands_of_every_shape(session: Session, command: str, stdout: bytes) -> None:
    assert session.run(command).stdout == stdout
    assert session.code("true") == 0


@pytest.mark.parametrize("command", ["echo 'open", 'echo "open', "if true; then", ")", "for", "echo $(", "a() {"])
def test_what_cannot_be_parsed_is_only_an_error(session: Session, command: str) -> None:
    assert session.code(command) not in (0, None)
    assert session.run("echo next").stdout == b"next\n"


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("exit 3", ("exited", 3, None)),
        ("exec echo replaced", ("exited", 0, None)),
        ("kill -9 $$", ("signaled", None, 9)),
        ("set -e; false", ("exited", 1, None)),
    ],
)
def test_an_end_of_the_shell_is_told(session: Session, command: str, how: Any) -> None:
    call = session.run(f"echo before; {command}")
    assert (call.how(), call.answer["session_ended"]) == (how, True)
    assert call.stdout.startswith(b"before\n")
    with pytest.raises(SessionNotFoundError):
        assert session.run("true").answer
    session.open()


def test_a_timeout_kills_the_command_and_not_the_session(session: Session) -> None:
    session.run("cd /usr; sleep 300 &")
    call = session.run("echo part; sleep 301", timeout_ms=300)
    assert (call.how(), call.answer["session_ended"], call.stdout) == (("timed_out", None, None), False, b"part\n")
    assert session.run("pwd").stdout == b"/usr\n"
    assert b"Running" in session.run("jobs").stdout, "jobs of earlier commands stay"


def test_a_shell_that_does_not_come_back_is_killed(session: Session) -> None:
    call = session.run("echo part; while :; do :; done", timeout_ms=200)
    assert (call.how(), call.answer["session_ended"], call.stdout) == (("timed_out", None, None), True, b"part\n")
    session.open()


def test_a_cancel_is_a_timeout_by_hand(session: Session) -> None:
    call = session.start("sleep 300")
    session.talk.cancel(call)
    assert session.talk.finish(call).how() == ("canceled", None, None)
    assert session.code("true") == 0


def test_output_is_cut_and_belongs_to_its_command(session: Session) -> None:
    call = session.run("head -c 3000000 /dev/zero | tr '\\0' z; echo e >&2", limit={"head": 10, "tail": 10})
    assert (call.stdout, call.stderr) == (b"z" * 20, b"e\n")
    assert call.answer["stdout"] == {"total": 3_000_000, "head": 10, "tail": 10}
    session.run("yes & sleep 0.1", limit={"head": 0, "tail": 0})
    assert session.run("kill $!; wait; echo quiet").stdout.endswith(b"quiet\n")


def test_one_command_at_a_time(session: Session) -> None:
    first = session.start("sleep 0.3; echo first")
    with pytest.raises(ConflictError):
        assert session.run("echo second").answer
    assert session.talk.finish(first).stdout == b"first\n"


def test_closing_ends_its_jobs(talk: Conversation) -> None:
    session = Session(talk, ["/bin/sh"])
    session.run("setsid sleep 444 & sleep 444 &")
    session.close()
    talk.wait_for("test $(cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^sleep$') = 0")
    with pytest.raises(SessionNotFoundError):
        assert session.run("true").answer


@pytest.mark.parametrize("shell", [["/no/such"], ["/bin/true"], ["/etc/passwd"]])
def test_what_is_no_shell_is_refused(talk: Conversation, shell: list[str]) -> None:
    with pytest.raises(CommandNotStartedError):
        Session(talk, shell)


def test_sessions_are_bounded(talk: Conversation) -> None:
    sessions = [Session(talk, ["/bin/sh"]) for _ in range(16)]
    with pytest.raises(QuotaExceededError):
        Session(talk, ["/bin/sh"])
    assert talk.do("ping", {}).answer["sessions"] == 16
    for session in sessions:
        session.close()


def test_a_close_leaves_nothing_of_what_was_forking(talk: Conversation) -> None:
    session = Session(talk, ["/bin/dash"])
    session.run("breed() { while :; do sleep 300 & sleep 0.01; done; }; for i in 1 2 3; do breed & done")
    session.close()
    talk.wait_for("! grep -qsxE 'dash|sleep' /proc/[0-9]*/comm")
