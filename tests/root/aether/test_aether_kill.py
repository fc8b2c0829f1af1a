"""Timeouts, cancels, and what runs out: the whole of a command ends, and only that command."""

from __future__ import annotations

from pathlib import Path

import pytest
from conversation import Conversation
from rig import BY_DESCRIPTORS, ForkServer

from libdsec.protocol.errors import CommandNotStartedError

pytestmark = BY_DESCRIPTORS

LEFT = "cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^sleep$'"


@pytest.fixture(scope="module", params=["leaf", "tree"])
def talk(server: ForkServer, request: pytest.FixtureRequest) -> Conversation:
    """With the processes of a command held by a cgroup, and found by their descent."""
    box = server.create() if request.param == "leaf" else server.create(memory_cgroup=None)
    return Conversation(box)


@pytest.fixture(scope="module")
def small(server: ForkServer) -> Conversation:
    """A sandbox with 100 MiB and 60 processes."""
    box = server.create()
    (Path(box.plan["memory_cgroup"]) / "memory.limit_in_bytes").write_text(str(100 << 20))
    (Path(box.plan["pids_cgroup"]) / "pids.max").write_text("60")
    return Conversation(box)


def test_a_timeout_kills_all_and_gives_what_was_printed(talk: Conversation) -> None:
    call = talk.exec("echo part; sleep 300 & setsid sleep 301 & sleep 302", timeout_ms=300)
    assert (call.how(), call.stdout) == (("timed_out", None, None), b"part\n")
    talk.wait_for(f"test $({LEFT}) = 0")


def test_a_cancel_kills_all_and_gives_what_was_printed(talk: Conversation) -> None:
    call = talk.start_exec("echo part; trap '' TERM INT HUP; sleep 300 & sleep 301", stream=True)
    while not call.stdout:
        talk.take()
    talk.cancel(call)
    assert talk.finish(call).how() == ("canceled", None, None)
    assert call.stdout == b"part\n"
    talk.wait_for(f"test $({LEFT}) = 0")


def test_what_detaches_twice_is_found_in_its_leaf(server: ForkServer) -> None:
    talk = Conversation(server.create())
    call = talk.exec("setsid -f sleep 300; (setsid -f sleep 301 &); sleep 302", timeout_ms=300)
    assert call.how() == ("timed_out", None, None)
    assert talk.exec(LEFT).stdout == b"0\n"


def test_a_stopped_command_is_killed(talk: Conversation) -> None:
    call = talk.exec("kill -STOP $$", timeout_ms=200)
    assert call.how() == ("timed_out", None, None)


def test_an_endless_flood_ends_by_its_timeout(talk: Conversation) -> None:
    call = talk.exec("yes", timeout_ms=300)
    assert call.how() == ("timed_out", None, None)
    assert call.answer["stdout"]["total"] > len(call.stdout) > 0


def test_a_stalled_reader_does_not_hold_a_timeout(talk: Conversation) -> None:
    call = talk.start_exec("yes", stream=True, timeout_ms=300)
    call.grants = False
    assert talk.finish(call).how() == ("timed_out", None, None)


@pytest.mark.parametrize("tree", [False, True])
def test_a_signal_sent_right_after_the_start_is_not_lost(talk: Conversation, tree: bool) -> None:
    calls = [talk.start_exec("sleep 60", timeout_ms=20_000) for _ in range(16)]
    for call in calls:
        talk.event(call, {"signal": 9, "tree": tree})
    assert {talk.finish(call).how() for call in calls} == {("signaled", None, 9)}


def test_a_cancel_of_what_is_over_has_no_effect(talk: Conversation) -> None:
    call = talk.exec("echo quick")
    talk.cancel(call)
    assert talk.exec("echo next").stdout == b"next\n"


def test_out_of_memory_is_told_and_stays_in_its_command(small: Conversation) -> None:
    neighbour = small.start_exec("read x; echo fine $x", stdin=True)
    eat = "perl -e '$x = \"a\" x (400 << 20)'"
    call = small.exec(f"exec {eat}")
    assert call.how() == ("signaled", None, 9)
    assert call.answer["oom_kills"] == 1
    survivor = small.exec(f"{eat}; echo survived")
    assert (survivor.how(), survivor.stdout) == (("exited", 0, None), b"survived\n")
    assert survivor.answer["oom_kills"] == 1
    assert small.exec("true").answer["oom_kills"] == 0
    small.feed(neighbour, b"here\n")
    assert small.finish(neighbour).stdout == b"fine here\n"
    assert neighbour.answer["oom_kills"] == 0


@pytest.mark.parametrize(
    "bomb",
    [
        "bomb() { bomb | bomb & }; bomb",
        "echo 'setsid sh /tmp/b & setsid sh /tmp/b & wait' >/tmp/b; sh /tmp/b &",
    ],
    ids=["group", "sessions"],
)
def test_a_fork_bomb_ends_and_is_told(small: Conversation, bomb: str) -> None:
    call = small.exec(f"{bomb}\nwhile :; do :; done", timeout_ms=500)
    assert call.how() == ("timed_out", None, None)
    assert call.answer["pids_refused"] > 0
    assert small.exec("echo alive").stdout == b"alive\n"
    assert small.exec("ls -d /proc/[0-9]* | wc -l").stdout.strip() in (b"3", b"4")


def test_no_room_for_another_process_is_not_a_mystery(small: Conversation) -> None:
    sleepers = [small.start_exec(["/bin/sleep", "60"]) for _ in range(60)]
    with pytest.raises(CommandNotStartedError) as caught:
        assert small.exec(["/bin/true"]).answer
    assert caught.value.details["kind"] == "resources"
    assert caught.value.details["stage"] == "fork"
    for call in sleepers:
        small.cancel(call)
    for call in sleepers:
        small.finish(call)
    assert small.exec("echo alive").stdout == b"alive\n"
