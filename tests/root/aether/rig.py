"""A fork server under test, spoken to by hand: raw sockets and frames, nothing of the edge.

`ForkServer` runs the binary in a directory of its own; `Box` is a sandbox with its channel. Both give back all they
took when they are closed, also after a failure.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from dsec.linux.mounts import mount_erofs
from libdsec.protocol import frames
from libdsec.protocol.errors import ErrorBody, from_body
from libdsec.protocol.frames import Frame, Kind

DEADLINE_S = 30.0
ID_BASE = 1_000_000_000
KEEPER_BASE = 900_000_000
V1 = Path("/sys/fs/cgroup")
HIDDEN = ("/proc/kcore", "/proc/keys", "/proc/acpi", "/sys/firmware", "/proc/not-there")
PROTECTED = ("/proc/sys", "/proc/irq")
BY_DESCRIPTORS = pytest.mark.parametrize("server", ["descriptors"], indirect=True, scope="module")
"""For modules to which it is all the same how layers are handed to the overlay."""


def aether_binary() -> Path:
    repository = Path(__file__).resolve().parents[3]
    return Path(os.environ.get("DSEC_AETHER", repository / "target" / "release" / "aether"))


class Answer(NamedTuple):
    values: dict[str, Any]
    descriptors: list[int]


class Peer:
    """One SOCK_SEQPACKET socket to something of ours."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._next = 0
        self.events: list[dict[str, Any]] = []

    def send(self, packet: bytes, descriptors: tuple[int, ...] = ()) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self.sock.sendmsg([packet], rights)

    def send_call(self, method: str, args: Any, descriptors: tuple[int, ...] = ()) -> int:
        self._next += 1
        payload = msgspec.msgpack.encode({"method": method, "args": args})
        self.send(frames.encode(Kind.CALL, self._next, payload), descriptors)
        return self._next

    def receive(self, timeout_s: float = DEADLINE_S) -> tuple[Frame, list[int]] | None:
        """The next frame; None at the end of the connection."""
        ready, _, _ = select.select([self.sock], [], [], timeout_s)
        if not ready:
            raise TimeoutError("no frame came")
        try:
            data, ancillary, _, _ = self.sock.recvmsg(frames.MAX_PAYLOAD + 17, 1024, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        found = array.array("i")
        for _, _, rights in ancillary:
            found.frombytes(rights)
        return (frames.decode_packet(data), list(found)) if data else None

    def answer(self, call: int) -> Answer:
        """Wait for the end of a call; events are kept aside.

        :raises DSecError: the answer is an ERROR.
        """
        while True:
            received = self.receive()
            if received is None:
                raise ConnectionError("the connection ended before the answer")
            frame, descriptors = received
            if frame.kind is Kind.EVENT:
                self.events.append(msgspec.msgpack.decode(frame.payload))
                continue
            assert frame.call == call, frame
            if frame.kind is Kind.ERROR:
                raise from_body(msgspec.msgpack.decode(frame.payload, type=ErrorBody))
            assert frame.kind is Kind.RESULT, frame
            return Answer(msgspec.msgpack.decode(frame.payload), descriptors)

    def call(self, method: str, args: Any, descriptors: tuple[int, ...] = ()) -> Answer:
        return self.answer(self.send_call(method, args, descriptors))

    def wait_event(self, **wanted: Any) -> dict[str, Any]:
        while True:
            for event in self.events:
                if wanted.items() <= event.items():
                    self.events.remove(event)
                    return event
            received = self.receive()
            assert received is not None, "the connection ended before the event"
            assert received[0].kind is Kind.EVENT, received
            self.events.append(msgspec.msgpack.decode(received[0].payload))

    def close(self) -> None:
        self.sock.close()


def hello(epoch: str = "1") -> bytes:
    body = {"generation": 1, "role": "edge", "epoch": epoch, "version": "test", "max_payload": frames.MAX_PAYLOAD}
    return frames.encode(Kind.HELLO, 0, msgspec.msgpack.encode(body))


class Output(NamedTuple):
    answer: dict[str, Any]
    stdout: str
    stderr: str

    @property
    def code(self) -> int | None:
        code: int | None = self.answer["exit_code"]
        return code


class Box:
    """A sandbox that runs, by its channel."""

    def __init__(self, server: ForkServer, plan: dict[str, Any], answer: Answer, directories: list[Path]) -> None:
        self.server, self.plan, self.id = server, plan, plan["id"]
        self.pid, self.start_time = answer.values["pid"], answer.values["start_time"]
        self.pidfd = answer.descriptors[0]
        self.peer = Peer(socket.socket(fileno=answer.descriptors[1]))
        self.directories = directories
        first = self.peer.receive()
        assert first is not None
        assert first[0].kind is Kind.HELLO
        self.hello = msgspec.msgpack.decode(first[0].payload)
        self.peer.send(hello())

    def run(self, *argv: str, user: str = "root", env: dict[str, str] | None = None) -> Output:
        args = {
            "argv": argv, "env": env or {}, "cwd": "/", "user": user, "timeout_ms": 20_000, "stdin": False,
            "stream": False, "limit": {"head": 65536, "tail": 65536}, "pty": False, "rows": 24, "cols": 80,
        }  # fmt: skip
        call = self.peer.send_call("exec", args)
        streams = {frames.STDOUT: b"", frames.STDERR: b""}
        while True:
            received = self.peer.receive()
            assert received is not None, "init is gone"
            frame = received[0]
            if frame.kind is Kind.DATA:
                streams[frame.stream] += frame.payload
                continue
            if frame.kind is Kind.ERROR:
                raise from_body(msgspec.msgpack.decode(frame.payload, type=ErrorBody))
            if frame.kind is Kind.RESULT and frame.call == call:
                self.peer.send(frames.encode(Kind.ACK, call))
                answer = msgspec.msgpack.decode(frame.payload)
                return Output(answer, *(streams[s].decode(errors="replace") for s in (frames.STDOUT, frames.STDERR)))

    def sh(self, script: str, user: str = "root") -> Output:
        return self.run("/bin/sh", "-c", script, user=user, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})

    def close(self) -> None:
        """Kill it and remove its directories and cgroups. Idempotent."""
        with contextlib.suppress(Exception):
            self.server.peer.call("sandbox.kill", {"id": self.id})
        self.release()

    def release(self) -> None:
        """Give back what is the test's own."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
            self.peer.close()
        remove_all(self.directories)


def remove_all(directories: list[Path]) -> None:
    for directory in directories:
        if V1 in directory.parents:
            remove_cgroup(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def remove_cgroup(directory: Path) -> None:
    """A cgroup and its leaves, once what was in them has been reaped."""
    if not directory.exists():
        return
    for leaf in (entry for entry in directory.iterdir() if entry.is_dir()):
        remove_cgroup(leaf)
    limit = time.monotonic() + 5
    while True:
        try:
            directory.rmdir()
            return
        except OSError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.005)


class ForkServer:
    """The binary, in a directory of its own, and a connection to it."""

    def __init__(self, binary: Path, directory: Path, *options: str) -> None:
        self.directory, self.binary, self.options = directory, binary, options
        self.run_dir, self.root = directory / "run", directory / "run" / "root"
        self.root.mkdir(parents=True, exist_ok=True)
        self._count = 0
        self.boxes: list[Box] = []
        self.process = self.start()
        self.peer = self.connect()

    def start(self) -> subprocess.Popen[bytes]:
        log = (self.directory / "log").open("ab")
        command = [str(self.binary), "fork-server", "--run-dir", str(self.run_dir), *self.options]
        with log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def connect(self, greet: bool = True) -> Peer:
        limit = time.monotonic() + DEADLINE_S
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                sock.connect(str(self.run_dir / "fork-server.sock"))
                break
            except OSError:
                sock.close()
                assert self.process.poll() is None, (self.directory / "log").read_text()
                assert time.monotonic() < limit
                time.sleep(0.005)
        peer = Peer(sock)
        if greet:
            peer.send(hello())
            first = peer.receive()
            assert first is not None
            assert first[0].kind is Kind.HELLO
        return peer

    def plan(self, **changes: Any) -> tuple[dict[str, Any], list[Path]]:
        """A plan that works, with directories and cgroups of its own."""
        self._count += 1
        number = self._count
        id_base = ID_BASE + number * 65536
        name = f"box{number}"
        disk = self.directory / "boxes" / name
        upper, work = disk / "upper", disk / "work"
        for directory in (upper, work):
            directory.mkdir(parents=True)
        os.chown(upper, id_base, id_base)
        os.chmod(upper, 0o755)
        cgroups = [V1 / kind / f"aether-test-{os.getpid()}-{self.directory.name}-{name}" for kind in ("memory", "pids")]
        for cgroup in cgroups:
            cgroup.mkdir()
        plan = {
            "id": name, "layers": ["base"], "upper": str(upper), "work": str(work), "root": str(self.root),
            "id_base": id_base, "keeper": KEEPER_BASE + number, "cgroups": [str(path) for path in cgroups],
            "memory_cgroup": str(cgroups[0]), "pids_cgroup": str(cgroups[1]), "cgroup_version": 1, "hostname": name,
            "cpus": [], "memory_bytes": 0, "shm_bytes": 16 << 20, "masked": HIDDEN, "readonly": PROTECTED,
            "nested_user_namespaces": False, "host_network": False, "oom_score_adj": 100,
        }  # fmt: skip
        return {**plan, **changes}, [*cgroups, disk]

    def create(self, **changes: Any) -> Box:
        plan, directories = self.plan(**changes)
        try:
            box = Box(self, plan, self.peer.call("sandbox.create", plan), directories)
        except BaseException:
            remove_all(directories)
            raise
        self.boxes.append(box)
        return box

    def close(self) -> None:
        for box in self.boxes:
            box.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE_S)
        self.peer.close()


class Image(NamedTuple):
    """An EROFS image, and the file with its contents where that is another."""

    metadata: str
    data: str | None = None


def hold_image(server: ForkServer, key: str, image: Image) -> None:
    """Hand an EROFS image to the fork server as a layer."""
    mount = mount_erofs(image.metadata, image.data)
    try:
        server.peer.call("layer.hold", {"key": key}, (mount,))
    finally:
        os.close(mount)
