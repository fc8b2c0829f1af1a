"""A loader over a store in memory, layers mounted by it, and readers that are other processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from distant import DistantLayer, MemoryStore, make_distant

from dsec.linux import fanotify
from dsec.linux.mounts import attach, umount
from dsec.store.loading.bounds import Bounds
from dsec.store.loading.loader import Loader
from dsec.store.records import LayerRecord
from libdsec.protocol.images import DataSource

READ_MAPPED = """
import hashlib, mmap, random, sys
path, seed = sys.argv[1], int(sys.argv[2])
with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
    places = list(range(0, len(view), 4096))
    random.Random(seed).shuffle(places)
    for place in places:
        view[place]
    print(hashlib.sha256(view).hexdigest())
"""


class Rig:
    """Loaders on one directory, one after the other, and a second holder of their group, as the fork server is."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory, self._stack = directory, stack
        self.store = MemoryStore()
        self.kept: set[str] = set()
        self.graves = directory / "graves"
        self.graves.mkdir()
        self.group = fanotify.open_group()
        stack.callback(os.close, self.group)

    def unless_kept(self, digest: str, take_away: Callable[[], int]) -> int | None:
        return None if digest in self.kept else take_away()

    def layer(self, **content: int) -> DistantLayer:
        return self.store.add(make_distant(self.directory, **content))

    @contextmanager
    def loader(
        self, way: DataSource = "auto", *, group: bool = True, fresh: bool = True, bounds: Bounds | None = None
    ) -> Iterator[Loader]:
        loader = Loader(
            sources=self.store,
            locate=self.store.locate,
            unless_kept=self.unless_kept,
            pending_path=str(self.directory / "pending"),
            graves=str(self.graves),
            way=way,
            bounds=bounds,
        )
        try:
            if group:
                loader.use_group(os.dup(self.group), fresh=fresh)
            yield loader
        finally:
            loader.close()

    @contextmanager
    def mounted(self, loader: Loader, layer: LayerRecord) -> Iterator[Path]:
        at = self.directory / f"mount-{layer.digest[7:19]}"
        at.mkdir()
        mount = loader.mount(layer)
        try:
            attach(mount, str(at))
        finally:
            os.close(mount)
        try:
            yield at
        finally:
            umount(str(at))
            loader.unmounted(layer.digest)
            at.rmdir()


def read_hash(path: Path) -> str:
    """SHA-256 as another process reads it."""
    done = subprocess.run(["sha256sum", path], capture_output=True, text=True, timeout=60)
    return done.stdout.partition(" ")[0] or done.stderr


def map_hash(path: Path, seed: int) -> str:
    """As another process sees it in a mapping, having touched its pages in any order."""
    arguments = [sys.executable, "-c", READ_MAPPED, str(path), str(seed)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr


def start_read(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(["sha256sum", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def hash_of(process: subprocess.Popen[str], timeout_s: float = 60) -> str:
    out, err = process.communicate(timeout=timeout_s)
    return out.partition(" ")[0] or err


def zeros_hash(size: int) -> str:
    return hashlib.sha256(bytes(size)).hexdigest()
