"""Commands on a terminal."""

from __future__ import annotations

from conversation import Conversation
from rig import BY_DESCRIPTORS

pytestmark = BY_DESCRIPTORS


def test_a_terminal_of_the_users_own(talk: Conversation) -> None:
    script = "tty; stat -c '%u %a' $(tty); stty size; test -t 0 && test -t 1 && test -t 2 && echo whole; ls /proc/$$/fd"
    call = talk.exec(script, pty=True, rows=30, cols=100, user="1000:1000")
    name, owner, size, whole, *opened = call.stdout.decode().split("\r\n")
    assert name.startswith("/dev/pts/")
    assert owner.split()[0] == "1000"
    assert (size, whole) == ("30 100", "whole")
    assert " ".join(opened).split()[:3] == ["0", "1", "2"]
    assert call.stderr == b""
    assert call.answer["stdout"]["total"] == len(call.stdout)


def test_input_resize_and_end(talk: Conversation) -> None:
    call = talk.start_exec("stty -echo; echo ready; read x; stty size; cat; echo end", pty=True)
    while b"ready" not in call.stdout:
        talk.take()
    talk.event(call, {"rows": 10, "cols": 20})
    talk.feed(call, b"go\n", end=False)
    talk.feed(call, b"line\n")
    assert talk.finish(call).stdout.decode().split() == ["ready", "10", "20", "line", "end"]
    assert call.how() == ("exited", 0, None)


def test_the_interrupt_key_reaches_the_command(talk: Conversation) -> None:
    # by exec: a shell that is just starting a child may lose the interrupt
    call = talk.start_exec("echo ready; exec sleep 100", pty=True)
    while b"ready" not in call.stdout:
        talk.take()
    talk.feed(call, b"\x03", end=False)
    assert talk.finish(call).how() == ("signaled", None, 2)


def test_all_output_comes_before_the_answer(talk: Conversation) -> None:
    call = talk.exec("stty -opost; i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done", pty=True)
    assert call.stdout.split(b"\n")[-2] == b"line 2999"


def test_a_background_process_does_not_hold_the_answer(talk: Conversation) -> None:
    call = talk.exec("trap '' HUP; sleep 5 & echo started", pty=True)
    assert (call.how(), call.stdout) == (("exited", 0, None), b"started\r\n")


def test_a_timeout_ends_it(talk: Conversation) -> None:
    call = talk.exec("echo part; sleep 100", pty=True, timeout_ms=300)
    assert (call.how(), call.stdout) == (("timed_out", None, None), b"part\r\n")


def test_what_is_not_a_terminal_is_told_so(talk: Conversation) -> None:
    assert talk.exec("tty").stdout == b"not a tty\n"
