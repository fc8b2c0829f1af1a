"""Loaders in processes of their own, which a test kills. This program has imported everything, and forks one for each
message on its socket (descriptor 0): a `Start`, and beside it the group and the process's end of a socket to its test.

A loader mounts every layer of its directory's `distant.json` at a path named there, when it is the first; a successor
goes on with what is mounted. It says its pid, then `ready`, and then does one thing a line: `evict DIGEST`, `fetch
DIGEST`.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
from pathlib import Path
from typing import TextIO

import msgspec
from distant import DistantLayer, MemoryStore

from dsec import faults
from dsec.linux.mounts import attach
from dsec.store.loading.bounds import Bounds
from dsec.store.loading.loader import Loader
from dsec.store.records import LayerRecord


class Known(msgspec.Struct):
    record: LayerRecord
    data: str
    """Path of its bytes."""
    chunk_size: int
    at: str
    """Where it is to be mounted; empty: nowhere."""


class Start(msgspec.Struct):
    directory: str
    fresh: bool
    fault: str


def load(directory: Path, group: int, fresh: bool, lines: TextIO) -> None:
    known = msgspec.json.decode((directory / "distant.json").read_bytes(), type=list[Known])
    store = MemoryStore(delay_s=0.002)
    for layer in known:
        store.add(DistantLayer(layer.record, Path(layer.data).read_bytes(), layer.chunk_size, {}))
    loader = Loader(
        sources=store,
        locate=store.locate,
        unless_kept=lambda digest, take_away: take_away(),
        pending_path=str(directory / "pending"),
        graves=str(directory / "graves"),
        bounds=Bounds(first_window=1, most_window=2),
    )
    loader.use_group(group, fresh=fresh)
    for layer in known:
        if fresh and layer.at:
            mount = loader.mount(layer.record)
            attach(mount, layer.at)
            os.close(mount)
    print("ready", file=lines, flush=True)
    for line in lines:
        what, digest = line.split()
        if what == "evict":
            print(loader.evict(store.locate(digest)), file=lines, flush=True)
        else:
            loader.fetch_all([store.locate(digest)], lambda _: None)
            print("fetched", file=lines, flush=True)
    loader.close()


def main() -> None:
    wishes = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(wishes, 65_536, 2)
        if not message:
            return
        group, end = descriptors
        if os.fork() == 0:
            os.close(0)
            start = msgspec.json.decode(message, type=Start)
            os.environ["DSEC_FAULT"] = start.fault and f"edge:{start.fault}"
            importlib.reload(faults)  # it reads the environment when it is imported
            with socket.socket(fileno=end) as sock, sock.makefile("rw") as lines:
                print(os.getpid(), file=lines, flush=True)
                load(Path(start.directory), group, start.fresh, lines)
            os._exit(0)
        os.close(group)
        os.close(end)


if __name__ == "__main__":
    main()
