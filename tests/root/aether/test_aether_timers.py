"""Timers of PID 1 that are held: nothing becomes due, and everything is later by as long as that took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conversation import LIMIT, PATH, Conversation
from rig import BY_DESCRIPTORS

pytestmark = BY_DESCRIPTORS

TIMEOUT_MS = 1000
LONGER_S = 1.3


@pytest.fixture
def held(talk: Conversation) -> Iterator[Conversation]:
    """Timers go on for the next test whatever this one does."""
    yield talk
    talk.do("release_timers", {})


def wait_past_the_timeout() -> None:
    time.sleep(LONGER_S)


def switches(pid: int) -> int:
    """How often a process has gone to sleep by itself: of one that waits, how often it was woken."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("voluntary_ctxt_switches:", 1)[1].split()[0])


def test_a_command_outlives_its_timeout_by_the_time_held(held: Conversation) -> None:
    lucky = held.start_exec("read x; echo $x", stdin=True, timeout_ms=TIMEOUT_MS)
    stuck = held.start_exec("sleep 100", timeout_ms=TIMEOUT_MS)
    held.do("hold_timers", {})
    wait_past_the_timeout()
    assert held.do("release_timers", {}).answer["held_ms"] > 0
    held.feed(lucky, b"in time\n")
    assert (held.finish(lucky).how(), lucky.stdout) == (("exited", 0, None), b"in time\n")
    assert held.finish(stuck).answer["ended"] == "timed_out"


def test_a_session_outlives_its_timeout_by_the_time_held(held: Conversation) -> None:
    opened = held.do("session.open", {"shell": ["/bin/sh"], "env": PATH, "cwd": "/", "user": "root"})
    held.exec("rm -f /tmp/timers; mkfifo /tmp/timers")
    args = {"session": opened.answer["session"], "command": "read x </tmp/timers; echo $x", "limit": LIMIT}
    call = held.start("session.run", {**args, "timeout_ms": TIMEOUT_MS})
    held.do("hold_timers", {})
    wait_past_the_timeout()
    held.do("release_timers", {})
    held.exec("echo in time >/tmp/timers")
    assert (held.finish(call).how(), call.stdout) == (("exited", 0, None), b"in time\n")
    held.do("session.close", {"session": opened.answer["session"]})


def test_calls_are_served_while_timers_are_held(held: Conversation) -> None:
    held.do("hold_timers", {})
    assert held.exec("echo served", timeout_ms=1).stdout == b"served\n"
    canceled = held.start_exec("sleep 100")
    held.cancel(canceled)
    # it is killed at once; that all of it is gone may be seen by looking again, which waits
    held.do("release_timers", {})
    assert held.finish(canceled).answer["ended"] == "canceled"


def test_holding_and_releasing_may_be_repeated(held: Conversation) -> None:
    assert held.do("release_timers", {}).answer == {"held_ms": 0}
    for _ in range(2):
        assert held.do("hold_timers", {}).answer == {}
    time.sleep(0.01)
    assert held.do("release_timers", {}).answer["held_ms"] > 0
    assert held.do("release_timers", {}).answer == {"held_ms": 0}


def test_nothing_wakes_pid_1_while_timers_are_held(held: Conversation) -> None:
    # a deadline, a file operation that is timed, and a pipe in the background that is looked at again and again
    deadline = held.start_exec("exec sleep 100", timeout_ms=TIMEOUT_MS)
    written = held.start_file("write", "/tmp/slow")
    held.exec("(while :; do echo x; sleep 0.01; done) & echo $! >/tmp/printer")
    held.do("hold_timers", {})
    held.take_all()
    before = switches(held.box.pid)
    wait_past_the_timeout()
    assert switches(held.box.pid) == before
    assert held.exec("kill $(cat /tmp/printer)").how() == ("exited", 0, None)
    held.do("release_timers", {})
    held.feed(written, b"late")
    assert held.finish(written).answer["size"] == 4
    assert held.finish(deadline).answer["ended"] == "timed_out"


def test_timers_stay_held_for_a_successor(held: Conversation) -> None:
    call = held.start_exec("read x; echo $x", stdin=True, timeout_ms=TIMEOUT_MS)
    held.do("hold_timers", {})
    held.become_successor()
    wait_past_the_timeout()
    held.do("release_timers", {})
    held.feed(call, b"in time\n")
    assert (held.finish(call).how(), call.stdout) == (("exited", 0, None), b"in time\n")
