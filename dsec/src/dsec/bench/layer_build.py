"""`layer-build`: a layer from a tree of files, in seconds; the median counts.

Ours: `dsec.store.build.build_layer` of a plain directory, every chunk hashed and the result on the disk (fsync) when
the clock stops; of a tar of the same tree in `detail`. The peers: `mkfs.erofs`, uncompressed, and `tar` with gzip, of
the same directory, neither of which hashes or syncs anything. The page cache is warm for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from dsec.store.build import build_layer
from dsec.store.sources.base import Source
from dsec.store.sources.directory import DirectorySource
from dsec.store.sources.tar import TarSource

from .figures import Figure, Report, median, percentile, report
from .ground import Ground
from .machine import machine
from .native import output_of
from .rounds import Contestant, Progress, interleave

NAME = "layer-build"
SAMPLES = 10


def _seconds(values: Sequence[float], detail: dict[str, float] | None = None) -> Figure:
    return Figure(median(values), "s", len(values), percentile(values, 0.99), detail or {})


@contextlib.contextmanager
def _tar_source(tar: Path) -> Iterator[Source]:
    with tar.open("rb") as file:
        yield TarSource(file)


class _Builds:
    """Every way to build, each into files that are gone afterwards."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()

    async def ours(self, source: Callable[[], AbstractContextManager[Source]], count: int) -> list[float]:
        return [await asyncio.to_thread(self._build, source) for _ in range(count)]

    def _build(self, source: Callable[[], AbstractContextManager[Source]]) -> float:
        name = f"layer-{next(self._numbers)}"
        begin = time.perf_counter()
        with source() as opened:
            built = build_layer(opened, self._directory, name)
        seconds = time.perf_counter() - begin
        os.unlink(built.metadata_path)
        os.unlink(built.data_path)
        return seconds

    async def program(self, argv: Sequence[str], count: int) -> list[float]:
        """`@OUT@` in `argv` is the file it writes."""
        times = []
        for _ in range(count):
            out = self._directory / f"out-{next(self._numbers)}"
            begin = time.perf_counter()
            await output_of([word.replace("@OUT@", str(out)) for word in argv], 600)
            times.append(time.perf_counter() - begin)
            out.unlink()
        return times


async def measure(ground: Ground, samples: int, progress: Progress) -> Report:
    where = ground.directory / NAME
    where.mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, where)
        tree, tar = where / "tree", where / "tree.tar"
        progress(0, 1, "copying the tree")
        await output_of(["cp", "-a", str(ground.lower), str(tree)], 600)
        await output_of(["tar", "--numeric-owner", "--xattrs", "-C", str(tree), "-cf", str(tar), "."], 600)
        builds = _Builds(where)
        contestants = {
            "ours": Contestant(partial(builds.ours, lambda: contextlib.nullcontext(DirectorySource(tree)))),
            "tar": Contestant(partial(builds.ours, partial(_tar_source, tar))),
            "tar_gz": Contestant(partial(builds.program, ["tar", "-C", str(tree), "-czf", "@OUT@", "."]), 0.2),
        }
        if shutil.which("mkfs.erofs") is not None:
            contestants["mkfs_erofs"] = Contestant(partial(builds.program, ["mkfs.erofs", "-d0", "@OUT@", str(tree)]))
        times = await interleave(contestants, samples, rounds=min(samples, 5), progress=progress)
    others = {name: _seconds(times[name]) if name in times else None for name in ("tar_gz", "mkfs_erofs")}
    return report(
        NAME, machine(ground.load), _seconds(times["ours"], {"from_tar_s": median(times["tar"])}), others, None
    )
