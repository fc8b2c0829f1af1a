"""One-shot commands: what they get, how they end, and that nothing they do makes PID 1 wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from conversation import Conversation
from rig import BY_DESCRIPTORS, Box

from libdsec.protocol.errors import CommandNotStartedError, InvalidArgumentError, QuotaExceededError
from libdsec.protocol.frames import STDERR, STDOUT, WINDOW, Kind

pytestmark = BY_DESCRIPTORS


def test_output_and_exit_code(talk: Conversation) -> None:
    call = talk.exec("echo out; echo err >&2; exit 3")
    assert (call.stdout, call.stderr) == (b"out\n", b"err\n")
    assert call.how() == ("exited", 3, None)
    assert call.answer["stdout"] == {"total": 4, "head": 4, "tail": 0}
    assert (call.answer["untrusted"], call.answer["session_ended"]) == (False, False)


def test_a_signal_is_not_an_exit_code(talk: Conversation) -> None:
    assert talk.exec("kill -9 $$").how() == ("signaled", None, 9)
    assert talk.exec("exit 137").how() == ("exited", 137, None)


def test_a_command_gets_what_was_asked_and_no_more(talk: Conversation) -> None:
    env = {"ONLY": "this", "EMPTY": ""}
    call = talk.exec(["/usr/bin/env"], env=env)
    assert sorted(call.stdout.decode().split()) == ["EMPTY=", "HOME=/root", "ONLY=this"]
    assert talk.exec(["/usr/bin/env"], env={"HOME": "/tmp"}).stdout == b"HOME=/tmp\n"
    assert talk.exec("pwd", cwd="/usr").stdout == b"/usr\n"
    opened = talk.exec(["/bin/ls", "/proc/self/fd"]).stdout.split()
    assert opened == [b"0", b"1", b"2", b"3"]  # the last one is the listed directory itself
    assert talk.exec("readlink /proc/self/fd/0").stdout == b"/dev/null\n"
    status = talk.exec("grep -E '^(SigBlk|SigIgn|Umask):' /proc/self/status; cut -d' ' -f6 /proc/self/stat; echo $$")
    lines = status.stdout.decode().split()
    assert lines[:6] == ["Umask:", "0022", "SigBlk:", "0" * 16, "SigIgn:", "0" * 16]
    assert lines[6] == lines[7], "a command leads a session of its own"
    assert talk.exec("cat /proc/self/oom_score_adj").stdout == b"100\n"


@pytest.mark.parametrize(
    ("user", "ids"),
    [
        ("root", "0 0 0"),
        ("0", "0 0 0"),
        ("daemon", "1 1 1"),
        ("4242", "4242 0 0"),
        ("1000:1001", "1000 1001 1001"),
        ("65535:65535", "65535 65535 65535"),
    ],
)
def test_users(talk: Conversation, user: str, ids: str) -> None:
    assert talk.exec("echo $(id -u) $(id -g) $(id -G)", user=user).stdout.decode().strip() == ids


@pytest.mark.parametrize("user", ["root", "daemon"])
def test_standard_streams_open_by_name(talk: Conversation, user: str) -> None:
    script = "echo out > /dev/stdout; echo err > /dev/stderr; cat /dev/stdin"
    call = talk.start_exec(script, user=user, stdin=True)
    talk.feed(call, b"in\n")
    assert (talk.finish(call).stdout, call.stderr) == (b"out\nin\n", b"err\n")


def test_standard_streams_open_by_name_after_a_change_of_user(talk: Conversation) -> None:
    call = talk.exec("su -s /bin/sh daemon -c 'id -u > /dev/stdout; echo err > /dev/stderr'")
    assert (call.stdout, call.stderr) == (b"1\n", b"err\n")


def test_supplementary_groups_and_a_home(talk: Conversation) -> None:
    talk.exec("useradd -m -G audio,video worker")
    call = talk.exec('id -Gn; echo "$HOME"', user="worker")
    assert call.stdout.decode().split() == ["worker", "audio", "video", "/home/worker"]


@pytest.mark.parametrize(
    ("changes", "kind", "stage"),
    [
        ({"argv": ["no-such-program"]}, "not_found", "exec"),
        ({"argv": ["/no/such"]}, "not_found", "exec"),
        ({"argv": ["/etc/passwd"]}, "not_executable", "exec"),
        ({"argv": ["/etc"]}, "not_executable", "exec"),
        ({"argv": ["/bin/true"], "cwd": "/missing"}, "no_such_directory", "cwd"),
        ({"argv": ["/bin/true"], "cwd": "/etc/passwd"}, "no_such_directory", "cwd"),
        ({"argv": ["/bin/true"], "cwd": "/root", "user": "daemon"}, "permission", "cwd"),
        ({"argv": ["/bin/true"], "user": "nobody-here"}, "no_such_user", "user"),
        ({"argv": ["/bin/true"], "user": "70000:0"}, "no_such_user", "groups"),
        ({"argv": ["/bin/true", "x" * 200_000]}, "resources", "exec"),
    ],
)
@pytest.mark.parametrize("pty", [False, True], ids=["pipes", "terminal"])
def test_what_never_ran_is_told_apart(
    talk: Conversation, changes: dict[str, Any], kind: str, stage: str, pty: bool
) -> None:
    with pytest.raises(CommandNotStartedError) as caught:
        assert talk.exec(**changes, pty=pty).answer
    details = caught.value.details
    assert (details["kind"], details["stage"]) == (kind, stage)
    assert details["errno"] > 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"argv": []}, "argv"),
        ({"argv": ["a\0b"]}, "argv"),
        ({"argv": ["a"], "env": {"A=B": ""}}, "env"),
        ({"argv": ["a"], "cwd": "\0"}, "cwd"),
        ({"argv": ["a"], "limit": {"head": 1 << 40, "tail": 0}}, "limit"),
        ({"argv": 7}, "args"),
    ],
)
def test_bad_arguments_name_the_field(talk: Conversation, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        assert talk.exec(**changes).answer
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("event", [{}, {"signal": "9"}, {"rows": -1, "cols": 1}, [1], None])
def test_an_event_that_means_nothing_has_no_effect(talk: Conversation, event: Any) -> None:
    call = talk.start_exec("read x; echo $x", stdin=True)
    talk.send(Kind.EVENT, call.number, msgspec.msgpack.encode(event) if event is not None else b"\xc1")
    talk.feed(call, b"still here\n")
    assert talk.finish(call).stdout == b"still here\n"


def test_only_stream_1_is_stdin(talk: Conversation) -> None:
    call = talk.start_exec("cat", stdin=True)
    talk.send(Kind.DATA, call.number, b"not this", STDOUT)
    talk.feed(call, b"this")
    assert talk.finish(call).stdout == b"this"


def test_a_background_process_does_not_hold_the_answer(talk: Conversation) -> None:
    call = talk.exec("sleep 600 & echo $!")
    assert call.how() == ("exited", 0, None)
    # what it holds is read on, so that it does not die of its first line of log
    late = talk.exec("(sleep 0.2; echo late; echo alive >/tmp/late) & echo started")
    assert late.stdout == b"started\n"
    talk.wait_for("test -e /tmp/late")
    talk.exec(f"kill {call.stdout.decode()}")


def test_a_flood_without_newline_is_cut_and_counted(talk: Conversation) -> None:
    call = talk.exec("head -c 200000000 /dev/zero | tr '\\0' a; printf end", limit={"head": 1000, "tail": 10})
    assert call.stdout == b"a" * 1000 + b"a" * 7 + b"end"
    assert call.answer["stdout"] == {"total": 200_000_003, "head": 1000, "tail": 10}


def test_limits_of_nothing_and_exact_fits(talk: Conversation) -> None:
    none = talk.exec("printf 12345", limit={"head": 0, "tail": 0})
    assert (none.stdout, none.answer["stdout"]) == (b"", {"total": 5, "head": 0, "tail": 0})
    call = talk.exec("printf 12345", limit={"head": 2, "tail": 3})
    assert (call.stdout, call.answer["stdout"]) == (b"12345", {"total": 5, "head": 2, "tail": 3})


def test_any_bytes_come_through(talk: Conversation) -> None:
    assert talk.exec(r"printf '\377\376\000\200'").stdout == b"\xff\xfe\x00\x80"


def test_a_detached_flood_costs_nothing(talk: Conversation, box: Box) -> None:
    talk.exec("yes & echo $! >/tmp/yes; setsid yes & echo $! >>/tmp/yes")
    talk.exec("sleep 0.5")
    resident = resident_kb(box)
    assert resident < 8192
    # it goes on, slowly, until somebody ends it
    assert talk.exec("kill $(cat /tmp/yes)").how() == ("exited", 0, None)


def resident_kb(box: Box) -> int:
    with open(f"/proc/{box.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def test_memory_after_large_output_is_given_back(talk: Conversation, box: Box) -> None:
    talk.exec("true")
    before = resident_kb(box)
    for _ in range(5):
        talk.exec("head -c 9000000 /dev/zero", limit={"head": 4 << 20, "tail": 4 << 20})
    talk.exec("true")
    assert resident_kb(box) < before + 1500


def test_stdin(talk: Conversation) -> None:
    call = talk.start_exec("cat", stdin=True)
    talk.feed(call, b"hello ", end=False)
    talk.feed(call, b"world")
    assert talk.finish(call).stdout == b"hello world"


def test_large_stdin_flows_by_credit(talk: Conversation) -> None:
    call = talk.start_exec("md5sum; wc -c", stdin=True)
    talk.feed(call, bytes(range(256)) * 20_000)
    assert talk.finish(call).stdout.split()[-1] == b"0"
    assert call.credit <= WINDOW


def test_stdin_that_nobody_reads_is_swallowed(talk: Conversation) -> None:
    call = talk.start_exec("exec 0<&-; sleep 0.1; echo done", stdin=True)
    talk.feed(call, b"x" * 3_000_000)
    assert talk.finish(call).stdout == b"done\n"


def test_stdin_never_closed_does_not_hold_the_answer(talk: Conversation) -> None:
    call = talk.start_exec("read x; echo got $x", stdin=True)
    talk.feed(call, b"line\n", end=False)
    assert talk.finish(call).stdout == b"got line\n"


def test_streaming_waits_for_credit(talk: Conversation) -> None:
    call = talk.start_exec("head -c 1000000 /dev/zero; echo e >&2", stream=True)
    call.grants = False
    talk.take_all()
    assert len(call.stdout) == WINDOW
    assert not call.over
    assert talk.exec("echo others go on").stdout == b"others go on\n"
    call.grants = True
    talk.grant(call, STDOUT, WINDOW)
    talk.finish(call)
    assert (len(call.stdout), call.stderr) == (1_000_000, b"e\n")
    assert call.answer["stdout"] == {"total": 1_000_000, "head": 0, "tail": 0}
    assert call.ended_streams == {STDOUT, STDERR}


def test_a_stream_comes_as_it_is_printed(talk: Conversation) -> None:
    call = talk.start_exec("echo first; read x; echo second $x", stream=True, stdin=True)
    while not call.stdout:
        talk.take()
    assert call.stdout == b"first\n"
    talk.feed(call, b"now\n")
    assert talk.finish(call).stdout == b"first\nsecond now\n"


def test_signals_go_to_the_group_or_the_tree(talk: Conversation) -> None:
    call = talk.start_exec("trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.05; done", stream=True)
    while b"ready" not in call.stdout:
        talk.take()
    talk.event(call, {"signal": 15, "tree": False})
    assert talk.finish(call).how() == ("exited", 5, None)
    assert b"caught" in call.stdout
    tree = talk.start_exec("setsid -w sleep 100", stream=True)
    talk.wait_for("pgrep -f 'sleep 100' >/dev/null || grep -qs sleep /proc/[0-9]*/comm")
    talk.event(tree, {"signal": 9, "tree": True})
    assert talk.finish(tree).how() == ("signaled", None, 9)
    # what is no signal, and news of a call that is over, has no effect
    talk.event(call, {"signal": 4000, "tree": False})
    assert talk.exec("true").how() == ("exited", 0, None)


def test_many_at_once_and_one_too_many(talk: Conversation) -> None:
    calls = [talk.start_exec("read x", stdin=True) for _ in range(64)]
    with pytest.raises(QuotaExceededError) as caught:
        assert talk.exec("true").answer
    assert caught.value.details == {"resource": "commands", "limit": 64}
    for call in calls:
        talk.feed(call, b"\n")
    assert {talk.finish(call).how() for call in calls} == {("exited", 0, None)}
    assert talk.do("ping", {}).answer == {"commands": 0, "sessions": 0}


def test_unknown_methods_are_refused(talk: Conversation) -> None:
    call = talk.do("no.such", {})
    assert call.error is not None
    assert call.error.code == "unsupported"


def test_leaves_are_used_again(talk: Conversation, box: Box) -> None:
    made = {entry.name for entry in Path(box.plan["memory_cgroup"]).iterdir() if entry.is_dir()}
    for _ in range(20):
        talk.exec("true")
    assert made == {entry.name for entry in Path(box.plan["memory_cgroup"]).iterdir() if entry.is_dir()}
