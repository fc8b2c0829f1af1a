"""Sandboxes that outlive their fork server, in the hands of the next one; and ends that take long."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conversation import Conversation
from leftovers import wait_until
from rig import V1, Box, ForkServer, Image, Peer, aether_binary, hello, hold_image, remove_cgroup

from libdsec.protocol.errors import AlreadyExistsError, InvalidArgumentError, SandboxNotFoundError


@pytest.fixture
def first(tmp_path: Path, base_image: Image) -> Iterator[ForkServer]:
    server = ForkServer(aether_binary(), tmp_path)
    try:
        hold_image(server, "base", base_image)
        yield server
    finally:
        server.close()


def succeed(server: ForkServer) -> None:
    """Kill it, and have another in its place that knows nothing."""
    server.process.kill()
    server.process.wait()
    server.peer.close()
    server.process = server.start()
    server.peer = server.connect()


def entry(box: Box) -> dict[str, object]:
    return {"id": box.id, "pid": box.pid, "start_time": box.start_time}


def hold(server: ForkServer, box: Box) -> None:
    server.peer.call("sandbox.hold", entry(box), (box.pidfd, box.peer.sock.fileno()))


def listed(server: ForkServer) -> list[dict[str, object]]:
    found: list[dict[str, object]] = server.peer.call("sandbox.list", {}).values["sandboxes"]
    return found


def test_a_sandbox_goes_from_one_fork_server_to_the_next(first: ForkServer) -> None:
    boxes = [first.create() for _ in range(3)]
    running = Conversation(boxes[0]).start_exec("read x; echo survived $x", stdin=True, tag="a step")
    succeed(first)
    assert listed(first) == []
    for box in reversed(boxes):
        hold(first, box)
    assert listed(first) == [entry(box) for box in boxes]
    assert first.peer.call("sandbox.list", {"after": boxes[0].id}).values["sandboxes"] == [entry(b) for b in boxes[1:]]
    # the edge is gone now too, and its successor has nothing but the fork server
    boxes[0].peer.close()
    adopted = first.peer.call("sandbox.adopt", {"id": boxes[0].id})
    assert adopted.values == {"pid": boxes[0].pid, "start_time": boxes[0].start_time}
    pidfd, channel = adopted.descriptors
    assert f"Pid:\t{boxes[0].pid}\n" in Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    boxes[0].peer = Peer(socket.socket(fileno=channel))
    talk = Conversation(boxes[0], first=5000)
    talk.post(hello("2"))
    talk.take_all()
    assert talk.known == [(running.number, "a step", True)]
    talk.feed(talk.calls[running.number], b"both\n")
    assert talk.finish(talk.calls[running.number]).stdout == b"survived both\n"
    first.peer.call("sandbox.kill", {"id": boxes[0].id})
    assert select.select([pidfd], [], [], 0)[0], "answered before it had ended"
    os.close(pidfd)
    assert first.peer.wait_event(id=boxes[0].id) == {"event": "exited", "id": boxes[0].id}
    assert listed(first) == [entry(box) for box in boxes[1:]]
    with pytest.raises(SandboxNotFoundError):
        first.peer.call("sandbox.kill", {"id": boxes[0].id})
    # one that ends by itself
    os.kill(boxes[1].pid, 9)
    assert first.peer.wait_event(id=boxes[1].id) == {"event": "exited", "id": boxes[1].id}
    # and new ones stand beside it
    with pytest.raises(AlreadyExistsError):
        hold(first, boxes[2])
    with pytest.raises(AlreadyExistsError):
        first.peer.call("sandbox.create", {**boxes[2].plan, "layers": ["base"]})


def test_a_held_sandbox_ends_with_its_fork_server_told_to(first: ForkServer, base_image: Image) -> None:
    box = first.create()
    succeed(first)
    hold(first, box)
    hold_image(first, "base", base_image)
    own = first.create()
    first.peer.call("server.shutdown", {})
    assert first.process.wait(10) == 0
    assert all(select.select([each.pidfd], [], [], 0)[0] for each in (box, own))


def test_a_layer_can_be_dropped_under_what_is_held(first: ForkServer, base_image: Image) -> None:
    box = first.create()
    succeed(first)
    hold_image(first, "base", base_image)
    hold(first, box)
    first.peer.call("layer.drop", {"key": "base"})
    assert box.run("/bin/echo", "still here").stdout == "still here\n"


def test_only_what_is_that_process_is_held(first: ForkServer) -> None:
    box = first.create()
    succeed(first)
    channel = box.peer.sock.fileno()
    stranger = subprocess.Popen(["/bin/sleep", "100"])
    others = os.pidfd_open(stranger.pid)
    null = os.open("/dev/null", os.O_RDWR)
    right = entry(box)
    try:
        wrong: list[tuple[dict[str, object], tuple[int, ...]]] = [
            (right, (others, channel)),
            (right, (null, channel)),
            (right, (channel, box.pidfd)),
            (right, (box.pidfd, null)),
            (right, (box.pidfd,)),
            (right, ()),
            (right, (box.pidfd, channel, null)),
            ({**right, "start_time": box.start_time + 1}, (box.pidfd, channel)),
            ({**right, "pid": stranger.pid}, (box.pidfd, channel)),
            ({**right, "pid": 0}, (box.pidfd, channel)),
            ({**right, "id": "No Id"}, (box.pidfd, channel)),
            ({"id": box.id}, (box.pidfd, channel)),
        ]
        for args, descriptors in wrong:
            with pytest.raises(InvalidArgumentError):
                first.peer.call("sandbox.hold", args, descriptors)
        stranger.kill()
        stranger.wait()
        with pytest.raises(InvalidArgumentError):
            first.peer.call("sandbox.hold", {**right, "pid": stranger.pid}, (others, channel))
        assert listed(first) == []
        held_before = len(os.listdir(f"/proc/{first.process.pid}/fd"))
        hold(first, box)
        assert len(os.listdir(f"/proc/{first.process.pid}/fd")) == held_before + 2
    finally:
        stranger.kill()
        stranger.wait()
        os.close(others)
        os.close(null)


def test_a_sandbox_that_is_dead_already_is_held_only_until_that_is_seen(first: ForkServer) -> None:
    box = first.create()
    succeed(first)
    os.kill(box.pid, 9)
    # whether its new parent has reaped it by now or not
    try:
        hold(first, box)
        assert first.peer.wait_event(id=box.id) == {"event": "exited", "id": box.id}
    except InvalidArgumentError:
        pass
    assert listed(first) == []


@pytest.fixture
def freezer(first: ForkServer) -> Iterator[Path]:
    group = V1 / "freezer" / f"aether-test-{os.getpid()}-{first.directory.name}"
    if not group.parent.joinpath("cgroup.procs").exists():
        pytest.skip("needs the freezer of cgroup v1")
    group.mkdir()
    yield group
    (group / "freezer.state").write_text("THAWED")
    first.close()
    remove_cgroup(group)


@pytest.mark.parametrize("held", [False, True], ids=["own", "held"])
def test_a_kill_of_what_is_frozen_is_answered_when_it_is_thawed(
    first: ForkServer, freezer: Path, base_image: Image, held: bool
) -> None:
    plan, directories = first.plan()
    plan["cgroups"].append(str(freezer))
    box = Box(first, plan, first.peer.call("sandbox.create", plan), directories)
    first.boxes.append(box)
    if held:
        succeed(first)
        hold(first, box)
        hold_image(first, "base", base_image)
    state = freezer / "freezer.state"
    state.write_text("FROZEN")
    wait_until(lambda: state.read_text().strip() == "FROZEN")
    calls = [first.peer.send_call("sandbox.kill", {"id": box.id}) for _ in range(2)]
    # the next answer is not that of the kill
    assert entry(box) in listed(first)
    other = first.create()
    assert other.run("/bin/echo", "meanwhile").stdout == "meanwhile\n"
    other.close()
    assert not select.select([box.pidfd], [], [], 0)[0]
    state.write_text("THAWED")
    assert [first.peer.answer(call).values for call in calls] == [{}, {}]
    assert listed(first) == []
