"""`pack`: 10 MB written in a sandbox over an image of 1 GB become an image, in milliseconds; the median counts.

Ours: `pack_diff` through the SDK, into a store on the disk (synced), every chunk hashed; how long the sandbox stood
still is in `detail`. Each turn has a sandbox of its own with 100 new files of 100 KB that do not compress. The peers do
the same with a container or bundle of the same tree: `docker commit`, where a daemon answers, and `umoci repack`, which
finds the change by comparing the whole tree with a list made when it was unpacked, and compresses it. The floor: those
100 files read and hashed. The page cache is warm for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from blake3 import blake3

from libdsec import DSecClient, DSecContainerRunArgs
from libdsec.protocol.errors import DSecError

from .figures import Report, median, of_times, report
from .ground import Ground
from .machine import machine
from .native import output_of
from .peers import docker_answers
from .rounds import Contestant, Progress, interleave

NAME = "pack"
SAMPLES = 15
IMAGE_MB = 1000
CHANGED_FILES = 100
CHANGED_BYTES = 100_000
_FILLING_BYTES = 200_000
_TIMEOUT_S = 600.0


class _Change:
    """What is written in each sandbox: a directory beside the tree."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        for number in range(CHANGED_FILES):
            (directory / f"{number:03}").write_bytes(os.urandom(CHANGED_BYTES))

    async def floor(self, count: int) -> list[float]:
        return [await asyncio.to_thread(self._read) for _ in range(count)]

    def _read(self) -> float:
        begin = time.perf_counter()
        digest = blake3()
        for path in sorted(self.directory.iterdir()):
            digest.update(path.read_bytes())
        return (time.perf_counter() - begin) * 1000


class _Ours:
    def __init__(self, client: DSecClient, image: str, change: _Change) -> None:
        self._client, self._image, self._change = client, image, change
        self._numbers = itertools.count()
        self.frozen_ms: list[float] = []

    async def turn(self, count: int) -> list[float]:
        return [await self._once() for _ in range(count)]

    async def _once(self) -> float:
        ref = f"bench/packed:{next(self._numbers)}"
        async with await self._client.run_container(DSecContainerRunArgs(container_image=self._image)) as sandbox:
            await sandbox.files.upload(self._change.directory, "/srv/change")
            begin = time.perf_counter()
            packed = await sandbox.pack_diff(ref)
            milliseconds = (time.perf_counter() - begin) * 1000
        self.frozen_ms.append(packed.frozen_ms)
        await self._client.remove_image(ref)
        return milliseconds


class _Docker:
    """An imported image of the tree, and a container of it for each turn."""

    def __init__(self, tree: Path, name: str, change: _Change) -> None:
        self._tree, self._name, self._change = tree, name, change
        self._numbers = itertools.count()

    async def prepare(self) -> None:
        script = 'tar -C "$1" -c . | docker import - "$2"'
        await output_of(["/bin/sh", "-c", script, "sh", str(self._tree), self._name], _TIMEOUT_S)

    async def turn(self, count: int) -> list[float]:
        return [await self._once() for _ in range(count)]

    async def _once(self) -> float:
        container, image = f"{self._name}-{next(self._numbers)}", f"{self._name}-packed"
        run = ["docker", "run", "--detach", "--name", container, "--network", "none", self._name, "sleep", "infinity"]
        await output_of(run, _TIMEOUT_S)
        try:
            await output_of(["docker", "cp", str(self._change.directory), f"{container}:/srv/change"], _TIMEOUT_S)
            begin = time.perf_counter()
            await output_of(["docker", "commit", container, image], _TIMEOUT_S)
            return (time.perf_counter() - begin) * 1000
        finally:
            await output_of(["docker", "rm", "--force", container], _TIMEOUT_S)
            await _quietly(["docker", "rmi", "--force", image])

    async def close(self) -> None:
        await _quietly(["docker", "rmi", "--force", self._name])


class _Umoci:
    """An OCI layout of the tree, unpacked once; each turn adds a layer of its own to it."""

    def __init__(self, tree: Path, where: Path, change: _Change) -> None:
        self._tree, self._where, self._change = tree, where, change
        self._layout, self._bundle = f"{where}/layout", f"{where}/bundle"
        self._numbers = itertools.count()

    async def prepare(self) -> None:
        self._where.mkdir()
        layer = str(self._where / "layer.tar")
        await output_of(["tar", "--numeric-owner", "-C", str(self._tree), "-cf", layer, "."], _TIMEOUT_S)
        await output_of(["umoci", "init", "--layout", self._layout], _TIMEOUT_S)
        await output_of(["umoci", "new", "--image", f"{self._layout}:base"], _TIMEOUT_S)
        # compressing it is no part of what is measured, but it is how such images are
        await output_of(["umoci", "raw", "add-layer", "--image", f"{self._layout}:base", layer], _TIMEOUT_S)
        os.unlink(layer)
        await output_of(["umoci", "unpack", "--image", f"{self._layout}:base", self._bundle], _TIMEOUT_S)

    async def turn(self, count: int) -> list[float]:
        return [await self._once() for _ in range(count)]

    async def _once(self) -> float:
        changed = Path(self._bundle, "rootfs/srv/change")
        await asyncio.to_thread(shutil.copytree, self._change.directory, changed)
        try:
            image = f"{self._layout}:packed-{next(self._numbers)}"
            begin = time.perf_counter()
            await output_of(["umoci", "repack", "--image", image, self._bundle], _TIMEOUT_S)
            return (time.perf_counter() - begin) * 1000
        finally:
            await asyncio.to_thread(shutil.rmtree, changed)


async def _quietly(argv: Sequence[str]) -> None:
    """Take away what may not be there."""
    with contextlib.suppress(DSecError):
        await output_of(argv, _TIMEOUT_S)


def _make_tree(lower: Path, tree: Path) -> None:
    """The image's own tree, filled up to `IMAGE_MB` with what does not compress."""
    shutil.copytree(lower, tree, symlinks=True, ignore_dangling_symlinks=True, ignore=_special)
    size = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    filling = tree / "opt/filling"
    filling.mkdir(parents=True)
    for number in range(max(0, IMAGE_MB * 1_000_000 - size) // _FILLING_BYTES):
        (filling / str(number)).write_bytes(os.urandom(_FILLING_BYTES))


def _special(directory: str, names: list[str]) -> list[str]:
    """What `copytree` cannot copy: devices and the like."""
    found = [(name, Path(directory, name)) for name in names]
    return [name for name, path in found if not (path.is_symlink() or path.is_dir() or path.is_file())]


@contextlib.asynccontextmanager
async def _peers(tree: Path, where: Path, name: str, change: _Change) -> AsyncIterator[dict[str, _Docker | _Umoci]]:
    found: dict[str, _Docker | _Umoci] = {}
    async with contextlib.AsyncExitStack() as stack:
        if await docker_answers():
            docker = found["docker_commit"] = _Docker(tree, name, change)
            stack.push_async_callback(docker.close)
        if shutil.which("umoci") is not None:
            found["umoci_repack"] = _Umoci(tree, where / "umoci", change)
        for peer in found.values():
            await peer.prepare()
        yield found


async def measure(ground: Ground, samples: int, progress: Progress) -> Report:
    where = ground.directory / NAME
    where.mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, where)
        progress(0, 1, "making an image of 1 GB")
        tree, change = where / "tree", await asyncio.to_thread(_Change, where / "change")
        await asyncio.to_thread(_make_tree, ground.lower, tree)
        async with ground.node.running() as client:
            image = "bench/large:1"
            await client.build_image(image, f"dir:{tree}")
            try:
                ours = _Ours(client, image, change)
                async with _peers(tree, where, ground.directory.name.lower(), change) as others:
                    contestants = {"ours": Contestant(ours.turn), "floor": Contestant(change.floor)}
                    contestants |= {name: Contestant(peer.turn, 0.34) for name, peer in others.items()}
                    times = await interleave(contestants, samples, rounds=min(samples, 5), progress=progress)
            finally:
                await client.remove_image(image)
    figures = {name: of_times(times[name]) if name in times else None for name in ("docker_commit", "umoci_repack")}
    detail = {"frozen_ms": median(ours.frozen_ms)}
    return report(NAME, machine(ground.load), of_times(times["ours"], detail), figures, of_times(times["floor"]))
