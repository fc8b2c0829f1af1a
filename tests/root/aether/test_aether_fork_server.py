"""The fork server's own promises: who may speak, what it answers, what outlives what."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest
from leftovers import traces, wait_until
from rig import Answer, Box, ForkServer, Image, Peer, aether_binary, hello, hold_image

from libdsec.protocol import frames
from libdsec.protocol.errors import (
    AlreadyExistsError,
    ConflictError,
    DSecError,
    InvalidArgumentError,
    NotFoundError,
    SandboxNotFoundError,
    UnsupportedOperationError,
)
from libdsec.protocol.frames import Kind


def gone(pidfd: int, timeout_s: float = 10) -> bool:
    """Whether the process has ended."""
    return bool(select.select([pidfd], [], [], timeout_s)[0])


def test_a_create_answers_with_pid_pidfd_and_channel(server: ForkServer) -> None:
    box = server.create()
    assert box.hello["role"] == "init"
    fields = Path(f"/proc/{box.pid}/stat").read_text().rsplit(")", 1)[1].split()
    assert int(fields[19]) == box.start_time
    assert f"Pid:\t{box.pid}\n" in Path(f"/proc/self/fdinfo/{box.pidfd}").read_text()
    entry = {"id": box.id, "pid": box.pid, "start_time": box.start_time}
    assert entry in server.peer.call("sandbox.list", {}).values["sandboxes"]
    box.close()
    assert entry not in server.peer.call("sandbox.list", {}).values["sandboxes"]


def test_lists_come_in_pages(server: ForkServer) -> None:
    boxes = [server.create() for _ in range(2)]
    ids = sorted(box.id for box in boxes)
    rest = server.peer.call("sandbox.list", {"after": ids[0]}).values
    assert (ids[0] in str(rest["sandboxes"]), rest["more"]) == (False, False)
    assert ids[1] in [entry["id"] for entry in rest["sandboxes"]]
    for box in boxes:
        box.close()


def test_a_second_hold_of_a_key_changes_nothing_and_use_blocks_a_drop(server: ForkServer) -> None:
    directory = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        server.peer.call("layer.hold", {"key": "base"}, (directory,))
    finally:
        os.close(directory)
    box = server.create()
    assert {"key": "base", "sandboxes": 1} in server.peer.call("layer.list", {}).values["layers"]
    with pytest.raises(ConflictError):
        server.peer.call("layer.drop", {"key": "base"})
    box.close()
    assert {"key": "base", "sandboxes": 0} in server.peer.call("layer.list", {}).values["layers"]


def test_what_cannot_be_done_is_refused_by_name(server: ForkServer) -> None:
    box = server.create()
    plan, _ = box.plan, None
    cases: list[tuple[str, object, type[DSecError]]] = [
        ("sandbox.create", plan, AlreadyExistsError),
        ("sandbox.create", {**plan, "id": "other", "layers": ["base", "unheard"]}, NotFoundError),
        ("sandbox.create", {**plan, "id": "other", "keeper": 0}, InvalidArgumentError),
        ("sandbox.create", {**plan, "id": "other", "layers": ["base"] * 129}, InvalidArgumentError),
        ("sandbox.create", {"id": "other"}, InvalidArgumentError),
        ("sandbox.create", "no map", InvalidArgumentError),
        ("sandbox.kill", {"id": "unheard"}, SandboxNotFoundError),
        ("sandbox.adopt", {"id": "unheard"}, SandboxNotFoundError),
        ("layer.drop", {"key": "unheard"}, NotFoundError),
        ("layer.hold", {"key": "nothing"}, InvalidArgumentError),
        ("server.dance", {}, UnsupportedOperationError),
    ]
    for method, args, error in cases:
        with pytest.raises(error):
            server.peer.call(method, args)
    box.close()


def broken_packets() -> dict[str, bytes]:
    call = msgspec.msgpack.encode({"method": "sandbox.list", "args": {}})
    return {
        "no hello": frames.encode(Kind.CALL, 1, call),
        "short": b"\x01\x02",
        "wrong size": frames.encode(Kind.HELLO, 0, b"1234")[:-1],
        "unknown kind": struct.pack("<IBBHQ", 0, 77, 0, 0, 0),
        "unknown flag": struct.pack("<IBBHQ", 0, 1, 2, 0, 0),
        "no map": frames.encode(Kind.HELLO, 0, b"\xc1"),
        "two hellos": hello(),
    }


@pytest.mark.parametrize("name", broken_packets())
def test_a_broken_peer_loses_its_connection_and_nothing_else(server: ForkServer, name: str) -> None:
    box = server.create()
    stranger = server.connect(greet=name == "two hellos")
    if name == "two hellos":
        assert server.peer.receive() is None  # it was the edge until then
    stranger.send(broken_packets()[name])
    assert stranger.receive() is None
    stranger.close()
    if name == "two hellos":
        server.peer.close()
        server.peer = server.connect()
    assert box.run("/bin/true").code == 0
    box.close()


def test_descriptors_that_nobody_asked_for_are_closed(server: ForkServer) -> None:
    before = traces(server)["descriptors"]
    for _ in range(5):
        with pytest.raises(DSecError):
            server.peer.call("layer.drop", {"key": "unheard"}, (0, 1, 2))
    assert traces(server)["descriptors"] == before


def test_only_root_may_speak(server: ForkServer) -> None:
    path = server.run_dir / "fork-server.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    os.chmod(path, 0o666)
    script = (
        "import os, socket, sys; os.setgid(65534); os.setuid(65534);"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); s.settimeout(10);"
        "sys.exit(0 if s.recv(100) == b'' else 1)"
    )
    # the directories above belong to the test alone; the socket itself is what is under test
    for parent in [path.parent, server.directory, *list(server.directory.parents)[:2]]:
        os.chmod(parent, parent.stat().st_mode | 0o711)
    done = subprocess.run([sys.executable, "-S", "-c", script, str(path)], timeout=20, capture_output=True, text=True)
    os.chmod(path, 0o600)
    assert done.returncode == 0, done.stderr


def test_a_new_edge_replaces_the_old_and_adopts(server: ForkServer) -> None:
    box = server.create()
    old, server.peer = server.peer, server.connect()
    assert old.receive() is None
    old.close()
    entry = next(e for e in server.peer.call("sandbox.list", {}).values["sandboxes"] if e["id"] == box.id)
    assert (entry["pid"], entry["start_time"]) == (box.pid, box.start_time)
    box.peer.close()  # the old edge's own end
    answer = server.peer.call("sandbox.adopt", {"id": box.id})
    assert answer.values == {"pid": box.pid, "start_time": box.start_time}
    os.close(answer.descriptors[0])
    box.peer = Peer(socket.socket(fileno=answer.descriptors[1]))
    box.peer.send(hello("2"))
    assert box.run("/bin/echo", "still here").stdout == "still here\n"
    box.close()


def test_a_death_is_told_once(server: ForkServer) -> None:
    box = server.create()
    os.kill(box.pid, 9)
    assert server.peer.wait_event(event="exited", id=box.id)["status"] == 9
    with pytest.raises(SandboxNotFoundError):
        server.peer.call("sandbox.kill", {"id": box.id})
    box.release()


def test_the_end_of_pid_1_ends_everything_inside(server: ForkServer) -> None:
    box = server.create()
    box.sh("setsid sleep 1000 >/dev/null 2>&1 & echo started")
    tasks = Path(box.plan["pids_cgroup"]) / "cgroup.procs"
    assert len(tasks.read_text().split()) == 2
    server.peer.call("sandbox.kill", {"id": box.id})
    assert tasks.read_text() == ""
    box.release()


@pytest.fixture
def own_server(tmp_path: Path, base_image: Image) -> ForkServer:
    server = ForkServer(aether_binary(), tmp_path)
    hold_image(server, "base", base_image)
    return server


def test_sandboxes_outlive_the_fork_server_as_long_as_an_edge_holds_them(own_server: ForkServer) -> None:
    kept, lost = own_server.create(), own_server.create()
    try:
        own_server.process.kill()
        own_server.process.wait()
        assert kept.run("/bin/echo", "alive").stdout == "alive\n"
        own_server.peer.close()
        own_server.process = own_server.start()  # on the same directory, and it knows nothing of them
        own_server.peer = own_server.connect()
        assert own_server.peer.call("sandbox.list", {}).values["sandboxes"] == []
        lost.peer.close()  # now nothing can reach it
        assert gone(lost.pidfd)
        assert kept.run("/bin/echo", "alive").stdout == "alive\n"
    finally:
        for box in (kept, lost):
            box.peer.close()
            assert gone(box.pidfd)
        own_server.close()


def test_a_sandbox_outlives_its_edge_as_long_as_the_fork_server_lives(own_server: ForkServer) -> None:
    box = own_server.create()
    box.peer.close()
    own_server.peer.close()
    assert not gone(box.pidfd, 0.3)
    own_server.peer = own_server.connect()
    box.close()
    own_server.close()


def test_a_shutdown_takes_all_sandboxes_along(own_server: ForkServer) -> None:
    boxes = [own_server.create() for _ in range(3)]
    assert own_server.peer.call("server.shutdown", {}).values == {}
    assert own_server.process.wait(10) == 0
    assert all(gone(box.pidfd) for box in boxes)
    own_server.close()


def test_two_fork_servers_on_one_directory_are_one_too_many(own_server: ForkServer) -> None:
    command = [str(aether_binary()), "fork-server", "--run-dir", str(own_server.run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    assert done.returncode == 1
    assert "another fork server" in done.stderr
    own_server.create().close()
    own_server.close()


def test_a_listening_socket_can_be_handed_over(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(tmp_path / "given.sock"))
    listener.listen(4)
    number = listener.fileno()
    command = [str(aether_binary()), "fork-server", "--run-dir", str(tmp_path), "--listen-fd", str(number)]
    process = subprocess.Popen(command, pass_fds=(number,), stderr=subprocess.DEVNULL)
    listener.close()
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(tmp_path / "given.sock"))
        peer = Peer(sock)
        peer.send(hello())
        received = peer.receive()
        assert received is not None
        assert received[0].kind is Kind.HELLO
        peer.call("server.shutdown", {})
        assert process.wait(10) == 0
        peer.close()
    finally:
        process.kill()
        process.wait()


def connects(sock: socket.socket, path: str) -> bool:
    return sock.connect_ex(path) == 0


def test_a_log_that_nobody_reads_is_no_reason_to_end(tmp_path: Path) -> None:
    command = [str(aether_binary()), "fork-server", "--run-dir", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        process.stderr.close()
        path = str(tmp_path / "fork-server.sock")
        wait_until(lambda: os.path.exists(path))
        for _ in range(2):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                wait_until(partial(connects, sock, path))
                stranger = Peer(sock)
                stranger.send(b"nonsense")
                assert stranger.receive() is None
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_many_creates_run_side_by_side(server: ForkServer) -> None:
    plans = [server.plan() for _ in range(20)]
    calls = {server.peer.send_call("sandbox.create", plan): (plan, directories) for plan, directories in plans}
    boxes = []
    while calls:
        received = server.peer.receive()
        assert received is not None
        frame, descriptors = received
        assert frame.kind is Kind.RESULT, frame
        plan, directories = calls.pop(frame.call)
        boxes.append(Box(server, plan, Answer(msgspec.msgpack.decode(frame.payload), descriptors), directories))
    assert len({box.pid for box in boxes}) == 20
    assert {box.run("/bin/hostname").stdout.strip() for box in boxes} == {box.plan["hostname"] for box in boxes}
    for box in boxes:
        box.close()
    wait_until(lambda: server.peer.call("sandbox.list", {}).values["sandboxes"] == [])
