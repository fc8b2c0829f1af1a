"""The loading process is killed on any line: a read is delayed, or refused, and never gets a wrong byte."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import msgspec
import pytest
from distant import DistantLayer
from loading_process import Known, Start
from loading_rig import Rig, hash_of, read_hash, start_read

from dsec.linux import fanotify
from dsec.linux.mounts import attach, umount
from dsec.store.loading import precontent
from dsec.store.loading.pending import PendingEvents

pytestmark = pytest.mark.needs("root", "erofs-from-files", "pre-content")

PROCESS = Path(__file__).with_name("loading_process.py")
REFUSES = {"loading.event.taken"}
"""Where a read may be refused: nobody knows what it wanted."""

POINTS = [
    "loading.event.taken",
    "loading.event.recorded",
    "loading.event.answering",
    "loading.event.answered",
    "loading.chunk.checked",
    "loading.chunk.written",
    "loading.chunk.marked",
    "loading.whole.synced",
    "loading.whole.marked",
]
MANY = ("loading.event.taken", "loading.event.answered", "loading.chunk.written")


@pytest.fixture(scope="module")
def zygote() -> Iterator[socket.socket]:
    """What loading processes are forked from."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ours, subprocess.Popen([sys.executable, PROCESS], stdin=theirs, env=environment) as process:
        theirs.close()
        yield ours
        ours.close()
        process.wait(10)


class Victim:
    """Loading processes on one directory, one after the other."""

    def __init__(self, zygote: socket.socket, rig: Rig, layers: list[DistantLayer]) -> None:
        self.zygote, self.rig, self.layers = zygote, rig, layers
        self.lines: TextIO | None = None
        self.pidfd = -1
        self.roots: dict[str, Path] = {}

    def describe(self, *, mounted: bool = True) -> None:
        known = []
        for layer in self.layers:
            data = self.rig.directory / f"{layer.record.digest[7:]}.raw"
            data.write_bytes(layer.data)
            root = self.rig.directory / f"root-{layer.record.digest[7:19]}"
            root.mkdir(exist_ok=True)
            self.roots[layer.record.digest] = root
            known.append(Known(layer.record, str(data), layer.chunk_size, str(root) if mounted else ""))
        (self.rig.directory / "distant.json").write_bytes(msgspec.json.encode(known))

    def start(self, *, fresh: bool, fault: str = "") -> bool:
        """Whether it came to be ready."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            start = msgspec.json.encode(Start(str(self.rig.directory), fresh, fault))
            socket.send_fds(self.zygote, [start], [self.rig.group, theirs.fileno()])
            self.lines = ours.makefile("rw")
        self.pidfd = os.pidfd_open(int(self.line()))
        return self.line() == "ready"

    def line(self) -> str:
        """Empty when it has died."""
        assert self.lines is not None
        try:
            return self.lines.readline().strip()
        except ConnectionResetError:
            return ""

    def ask(self, what: str) -> str:
        assert self.lines is not None
        self.lines.write(what + "\n")
        self.lines.flush()
        return self.line()

    def kill(self) -> None:
        """If it lives; it is dead afterwards."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        assert self.wait_dead(20)
        os.close(self.pidfd)
        self.pidfd = -1
        assert self.lines is not None
        with contextlib.suppress(OSError):
            self.lines.close()
        self.lines = None

    def wait_dead(self, timeout_s: float) -> bool:
        return bool(select.select([self.pidfd], [], [], timeout_s)[0])


@contextmanager
def victim(zygote: socket.socket, rig: Rig, layer: DistantLayer, *, mounted: bool = True) -> Iterator[Victim]:
    made = Victim(zygote, rig, [layer])
    made.describe(mounted=mounted)
    try:
        yield made
    finally:
        if made.lines is not None:
            made.kill()
        for root in made.roots.values():
            if os.path.ismount(root):
                umount(str(root), lazy=True)


def check(layer: DistantLayer, root: Path, found: dict[str, str], *, refused: bool = False) -> None:
    for path, wanted in layer.hashes.items():
        if refused and "Input/output error" in found[path]:
            continue
        assert found[path] == wanted, (path, found[path])


@pytest.mark.parametrize(("point", "passing"), [*((point, 1) for point in POINTS), *((point, 3) for point in MANY)])
def test_killed_at_a_step_of_a_cold_read(zygote: socket.socket, rig: Rig, point: str, passing: int) -> None:
    layer = rig.layer(files=14, most=1_500_000)
    with victim(zygote, rig, layer) as loading:
        # the one event before `ready` is our own
        assert loading.start(fresh=True, fault=f"{point}:{passing + point.startswith('loading.event')}")
        root = loading.roots[layer.record.digest]
        readers = {path: start_read(root / path) for path in layer.hashes}
        assert loading.wait_dead(20), "it did not pass the point"
        loading.kill()
        assert loading.start(fresh=False)
        found = {path: hash_of(reader) for path, reader in readers.items()}
        check(layer, root, found, refused=point in REFUSES)
        check(layer, root, {path: read_hash(root / path) for path in layer.hashes})


@pytest.mark.parametrize("seed", range(2))
def test_killed_again_and_again_at_any_moment(zygote: socket.socket, rig: Rig, seed: int) -> None:
    layer = rig.layer(seed=seed, files=25, most=2_000_000)
    moments = random.Random(seed)
    with victim(zygote, rig, layer) as loading:
        assert loading.start(fresh=True)
        root = loading.roots[layer.record.digest]
        readers = {path: start_read(root / path) for path in layer.hashes}
        for _ in range(3):
            time.sleep(moments.uniform(0, 0.05))
            loading.kill()
            assert loading.start(fresh=False)
        found = {path: hash_of(reader) for path, reader in readers.items()}
        check(layer, root, found, refused=True)
        check(layer, root, {path: read_hash(root / path) for path in layer.hashes})


def test_readers_wait_while_there_is_no_loader(zygote: socket.socket, rig: Rig) -> None:
    layer = rig.layer(files=6)
    with victim(zygote, rig, layer) as loading:
        assert loading.start(fresh=True)
        root = loading.roots[layer.record.digest]
        loading.kill()
        readers = {path: start_read(root / path) for path in layer.hashes}
        ended = start_read(root / next(iter(layer.hashes)))
        ended.kill()
        hash_of(ended)
        assert all(reader.poll() is None for reader in readers.values())
        assert loading.start(fresh=False)
        check(layer, root, {path: hash_of(reader) for path, reader in readers.items()})


@pytest.mark.parametrize("point", ["loading.data.made", "loading.data.named"])
def test_killed_while_a_data_file_is_made(zygote: socket.socket, rig: Rig, point: str) -> None:
    layer = rig.layer(files=6)
    with victim(zygote, rig, layer) as loading:
        assert not loading.start(fresh=True, fault=point)
        loading.kill()
        assert loading.start(fresh=True)
        root = loading.roots[layer.record.digest]
        check(layer, root, {path: read_hash(root / path) for path in layer.hashes})


@pytest.mark.parametrize("point", ["loading.evict.disowned", "loading.evict.renamed"])
@pytest.mark.parametrize("whole", [True, False])
def test_killed_while_data_is_evicted(zygote: socket.socket, rig: Rig, point: str, whole: bool) -> None:
    layer = rig.layer(files=20)
    assert layer.chunks > 2
    digest = layer.record.digest
    with victim(zygote, rig, layer, mounted=False) as loading:
        assert loading.start(fresh=True, fault=f"loading.chunk.marked:{layer.chunks // 2}" if not whole else point)
        answered = loading.ask(f"fetch {digest}")
        if whole:
            assert answered == "fetched"
        else:
            assert not answered
            loading.kill()
            assert loading.start(fresh=False, fault=point)
        assert loading.ask(f"evict {digest}") == ""
        loading.kill()
        loading.describe()
        assert loading.start(fresh=True)
        root = loading.roots[digest]
        check(layer, root, {path: read_hash(root / path) for path in layer.hashes})


def test_a_layer_that_is_mounted_is_not_evicted(zygote: socket.socket, rig: Rig) -> None:
    layer = rig.layer(files=6)
    with victim(zygote, rig, layer) as loading:
        assert loading.start(fresh=True)
        root = loading.roots[layer.record.digest]
        read_hash(root / next(iter(layer.hashes)))
        assert loading.ask(f"evict {layer.record.digest}") == "None"
        check(layer, root, {path: read_hash(root / path) for path in layer.hashes})


def test_an_answer_for_a_dead_process_lets_no_later_reader_go_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process dies after it has answered an event and before it has said so; the next one cannot keep the event's
    number, and another event gets it."""
    layer = rig.layer(files=1)
    path = next(iter(layer.hashes))
    with rig.loader() as first:
        mount = first.mount(layer.record)
    root = rig.directory / "root"
    root.mkdir()
    attach(mount, str(root))
    os.close(mount)
    stale = PendingEvents(str(rig.directory / "pending"))
    for number in range(200):
        stale.record(number, layer.record.digest, 0, 4096)
    monkeypatch.setattr(precontent, "_occupy", lambda number: None)
    events = precontent.PreContent(os.dup(rig.group), str(rig.directory / "pending"))
    assert len(events.inherit(fresh=False)) == 200
    read_event = fanotify.read_event
    answering: list[threading.Thread] = []

    def read_and_answer(group: int) -> fanotify.Event | None:
        event = read_event(group)
        if event is not None:
            answering.append(threading.Thread(target=events.answer_inherited, args=(event.descriptor,)))
            answering[-1].start()
            answering[-1].join(0.2)
        return event

    monkeypatch.setattr(fanotify, "read_event", read_and_answer)
    try:
        events.start(lambda *_: False, lambda _, event: events.answer(event.descriptor, errno.EIO), lambda: False)
        assert "Input/output error" in read_hash(root / path)
        for thread in answering:
            thread.join(10)
    finally:
        events.stop()
        events.close()
        stale.close()
        umount(str(root))
