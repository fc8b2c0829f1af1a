"""The channel: a successor of an edge loses nothing, repeats nothing, and a broken peer is not spoken to."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from conversation import LIMIT, PATH, Call, Conversation
from rig import BY_DESCRIPTORS, ForkServer, hello

from libdsec.protocol import frames
from libdsec.protocol.errors import InvalidArgumentError, OutcomeUnknownError, SessionNotFoundError
from libdsec.protocol.frames import STDOUT, WINDOW, Kind

pytestmark = BY_DESCRIPTORS

MIB = 1 << 20


@pytest.fixture
def talk(server: ForkServer) -> Conversation:
    return Conversation(server.create())


def adopt(talk: Conversation, epoch: str = "2") -> Conversation:
    """The channel as a new edge has it."""
    talk.post(hello(epoch))
    successor = Conversation(talk.box, first=5000)
    while not successor.hellos:
        successor.take()
    assert successor.hellos[0]["epoch"] == epoch
    return successor


def test_an_answer_that_was_not_acknowledged_comes_again(talk: Conversation) -> None:
    call = talk.start_exec("echo kept; echo e >&2; exit 4")
    talk.finish(call, ack=False)
    talk.exec("echo acknowledged")
    successor = adopt(talk)
    again = successor.calls.setdefault(call.number, type(call)(call.number))
    successor.finish(again)
    assert (again.stdout, again.stderr, again.how()) == (b"kept\n", b"e\n", ("exited", 4, None))
    successor.take_all()
    assert set(successor.calls) == {call.number}


def test_a_command_outlives_its_edge(talk: Conversation) -> None:
    call = talk.start_exec("read x; echo survived $x", stdin=True)
    talk.exec("true")
    successor = adopt(talk)
    again = successor.calls.setdefault(call.number, type(call)(call.number))
    successor.feed(again, b"it\n")
    assert successor.finish(again).stdout == b"survived it\n"


def test_a_successor_is_told_of_every_call_by_its_tag(talk: Conversation) -> None:
    talk.exec("mkfifo /tmp/gate /tmp/door; mkdir /tmp/watched", tag="acknowledged")
    waiting = talk.start_exec("read x </tmp/gate; echo $x", tag="runs/1")
    kept = talk.finish(talk.start_exec("echo kept", tag="kept/2"), ack=False)
    session_args = {"shell": ["/bin/sh"], "env": PATH, "cwd": "/", "user": "root"}
    opened = talk.finish(talk.start("session.open", session_args), ack=False)
    run_args = {"session": opened.answer["session"], "command": "read y </tmp/door; echo $y", "timeout_ms": 0,
                "limit": LIMIT}  # fmt: skip
    running = talk.start("session.run", run_args, tag="session/3")
    place = {"path": "/tmp/watched", "user": "root", "cwd": "/", "recursive": False}
    watching = talk.start("file.watch", place, tag="watch/4")
    failed = talk.finish(talk.start("session.close", {"session": 99}, tag="failed/5"), ack=False)
    while not watching.streams[STDOUT]:
        talk.take()
    successor = adopt(talk)
    successor.finish(successor.calls.setdefault(failed.number, Call(failed.number)), ack=False)
    assert successor.known == [
        (waiting.number, "runs/1", True),
        (kept.number, "kept/2", False),
        (opened.number, "", False),
        (running.number, "session/3", True),
        (watching.number, "watch/4", True),
        (failed.number, "failed/5", False),
    ]
    assert successor.calls[kept.number].stdout == b"kept\n"
    assert isinstance(successor.calls[failed.number].error, SessionNotFoundError)
    successor.exec("echo first >/tmp/gate; echo second >/tmp/door")
    assert successor.finish(successor.calls[waiting.number]).stdout == b"first\n"
    assert successor.finish(successor.calls[running.number]).stdout == b"second\n"
    successor.cancel(successor.calls[watching.number])
    successor.finish(successor.calls[watching.number])
    third = adopt(successor, "3")
    third.take_all()
    assert third.known[0] == (kept.number, "kept/2", False)


def test_each_successor_finds_the_hello_that_is_its_own(talk: Conversation) -> None:
    assert talk.box.hello["epoch"] == ""
    kept = talk.finish(talk.start_exec("echo kept", tag="kept"), ack=False)
    # one that dies before it has read anything, and the next
    talk.post(hello("2"))
    talk.post(hello("3"))
    said = []
    while [kind for kind, _, _ in said[-3:]] != [Kind.EVENT, Kind.DATA, Kind.RESULT] or len(said) < 8:
        received = talk.box.peer.receive()
        assert received is not None
        frame = received[0]
        said.append((frame.kind, frame.call, frame.payload))
    assert [msgspec.msgpack.decode(payload)["epoch"] for kind, _, payload in said if kind is Kind.HELLO] == ["2", "3"]
    whole = [(Kind.HELLO, 0), *((kind, kept.number) for kind in (Kind.EVENT, Kind.DATA, Kind.RESULT))]
    assert [(kind, call) for kind, call, _ in said] == 2 * whole


def test_a_tag_has_a_bound_and_only_its_own_call_is_refused(talk: Conversation) -> None:
    assert talk.finish(talk.start_exec("echo fits", tag="x" * 512)).stdout == b"fits\n"
    refused = talk.finish(talk.start_exec("echo too long", tag="x" * 513))
    assert isinstance(refused.error, InvalidArgumentError)
    assert "512" in str(refused.error)
    assert talk.exec("echo on").stdout == b"on\n"


def test_a_call_that_is_said_twice_runs_once(talk: Conversation) -> None:
    args = {"argv": ["/bin/sh", "-c", "echo x >>/tmp/count; sleep 0.1; cat /tmp/count"], "env": {}, "cwd": "/",
            "user": "0:0", "timeout_ms": 0, "stdin": False, "stream": False, "limit": {"head": 100, "tail": 100},
            "pty": False, "rows": 1, "cols": 1}  # fmt: skip
    call = talk.start("exec", args, number=77)
    talk.start("exec", args, number=77)
    call = talk.calls[77]
    talk.finish(call, ack=False)
    assert call.stdout == b"x\n"
    kept = talk.start("exec", args, number=77)
    assert talk.finish(kept).stdout == b"x\n"
    talk.take_all()


def test_a_stream_goes_on_with_a_fresh_window(talk: Conversation) -> None:
    call = talk.start_exec("yes | head -c 2000000", stream=True)
    call.grants = False
    talk.take_all()
    assert len(call.stdout) == WINDOW
    successor = adopt(talk)
    again = successor.calls.setdefault(call.number, type(call)(call.number))
    successor.finish(again)
    assert len(again.stdout) == 2_000_000 - WINDOW


def test_input_goes_on_with_a_fresh_window(talk: Conversation) -> None:
    talk.exec("mkfifo /tmp/gate")
    call = talk.start_exec("read go </tmp/gate; wc -c", stdin=True)
    writing = talk.start_file("write", "/tmp/written")
    for each in (call, writing):
        talk.feed(each, b"x" * 200_000, end=False)
    successor = adopt(talk)
    for each in (call, writing):
        again = successor.calls.setdefault(each.number, type(each)(each.number))
        successor.feed(again, b"y" * 100_000, end=False)
    assert successor.exec("test -p /tmp/gate && echo go >/tmp/gate").how() == ("exited", 0, None)
    for each in (call, writing):
        successor.feed(successor.calls[each.number], b"z" * 1_000_000)
    assert successor.finish(successor.calls[call.number]).stdout.strip() == b"1300000"
    assert successor.finish(successor.calls[writing.number]).answer["size"] == 1_300_000


def test_what_is_kept_is_bounded_and_the_oldest_is_unknown(server: ForkServer) -> None:
    talk = Conversation(server.create(memory_bytes=64 * MIB))
    calls = []
    for number in range(4):
        calls.append(talk.start_exec("head -c 3M /dev/zero", limit={"head": 3 * MIB, "tail": 0}, tag=f"step {number}"))
        talk.finish(calls[-1], ack=False)
    large = talk.start_exec("head -c 8M /dev/zero", limit={"head": 8 * MIB, "tail": 0}, tag="large")
    talk.finish(large, ack=False)
    assert len(large.stdout) == 8 * MIB
    successor = adopt(talk)
    successor.take_all()
    tags = [*(f"step {number}" for number in range(4)), "large"]
    expected = [(call.number, tag, False) for call, tag in zip([*calls, large], tags, strict=True)]
    assert successor.known == expected
    outcomes = [call.error is None for call in successor.calls.values()]
    assert outcomes == [False, False, True, True, True]
    assert {type(call.error) for call in successor.calls.values() if call.error} == {OutcomeUnknownError}
    # one that alone is too large is known, but for what it printed
    cut = successor.calls[large.number]
    assert (cut.stdout, cut.answer["stdout"]) == (b"", {"total": 8 * MIB, "head": 0, "tail": 0})


@pytest.mark.parametrize(
    "packet",
    [
        b"short",
        b"\xff" * 16,
        frames.encode(Kind.RESULT, 1, msgspec.msgpack.encode({})),
        frames.encode(Kind.CALL, 0, msgspec.msgpack.encode({"method": "ping", "args": {}})),
        frames.encode(Kind.CALL, 5, b"\xc1"),
        frames.encode(Kind.CREDIT, 5, b"123", STDOUT),
    ],
    ids=["short", "garbage", "answer", "call-0", "no-map", "credit"],
)
def test_a_broken_peer_ends_the_sandbox(talk: Conversation, server: ForkServer, packet: bytes) -> None:
    talk.start_exec("sleep 100")
    talk.box.peer.send(packet)
    event = server.peer.wait_event(event="exited", id=talk.box.id)
    assert event["status"] == 76 << 8


def test_more_input_than_was_granted_is_a_broken_peer(talk: Conversation, server: ForkServer) -> None:
    call = talk.start_exec("sleep 100", stdin=True)
    with contextlib.suppress(ConnectionError, BrokenPipeError):
        for _ in range(8):
            talk.send(Kind.DATA, call.number, b"x" * 65536, 1)
    assert server.peer.wait_event(event="exited", id=talk.box.id)["status"] == 76 << 8
