"""`layers`: sandboxes that each need a base, a workspace and three toolkits, composed of layers or unpacked.

Ours: `run_container(image, workspace, toolkits)`, whose layers were built before, as an image is. The peer, `tar.gz`:
the same base, into which the archive of the workspace and those of the toolkits are unpacked by `tar xzf -` inside, fed
through `run(stdin=...)`, so that no archive is stored a second time. Both begin with everything on the node's disk: as
layers, or as archives. A few sandboxes are made at once; those of one turn stay until all is counted.

Two figures. *Ready*: from the create until a command has read a file of the workspace and of each toolkit. *Written*:
what one sandbox wrote to the disk until then, by the disk's own count after a sync: the platform's records and the file
system's journal are in it, and so is whatever others write meanwhile. What building the layers wrote, once for all
sandboxes there will ever be, is in `detail`.

The trees are packages of the index that pip is configured for; `notes` says which. Without one, trees of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Sequence

import msgspec

from libdsec import DSecClient, DSecContainerRunArgs, Sandbox
from libdsec.protocol.errors import ImageNotFoundError

from .archives import Archive, Archives, gather
from .disk import written
from .figures import Figure, Report, median, percentile
from .ground import Ground
from .machine import machine
from .rounds import Contestant, Progress, interleave

NAME = "layers"
SAMPLES = 16
AT_ONCE = 4
_MEMORY_MB = 1024
_MB = 1e6
_CREATE_S = 300.0


class Measured(msgspec.Struct, frozen=True):
    """Of one way: seconds of each sandbox, megabytes of each turn's sandboxes on average."""

    ready_s: list[float]
    written_mb: list[float]


class _Needs:
    """What each next sandbox needs: the workspaces in turn, and all toolkits."""

    def __init__(self, found: Archives) -> None:
        self._found = found
        self._workspaces = itertools.cycle(found.workspaces)

    def next(self) -> tuple[Archive, ...]:
        return (next(self._workspaces), *self._found.toolkits)


class _Way:
    """Sandboxes made in one way, and what it costs."""

    def __init__(self, client: DSecClient, ground: Ground, needs: _Needs) -> None:
        self.client = client
        self.image = ground.image
        self._state = ground.node.state_dir
        self._needs = needs
        self.written_mb: list[float] = []

    async def turn(self, count: int) -> list[float]:
        """Seconds until each of `count` sandboxes is ready, all begun at once."""
        before = await asyncio.to_thread(written, self._state)
        sandboxes: list[Sandbox] = []
        try:
            seconds = await asyncio.gather(*(self._timed(sandboxes) for _ in range(count)))
            after = await asyncio.to_thread(written, self._state)
        finally:
            for sandbox in sandboxes:
                await sandbox.stop()
        self.written_mb.append((after - before) / count / _MB)
        return seconds

    async def _timed(self, sandboxes: list[Sandbox]) -> float:
        needs = self._needs.next()
        begin = time.perf_counter()
        sandbox = await self.create(needs)
        sandboxes.append(sandbox)
        await self.fill(sandbox, needs)
        (await sandbox.run_shell("cat " + " ".join(shlex.quote(need.probe) for need in needs) + " >/dev/null")).check()
        return time.perf_counter() - begin

    async def create(self, needs: Sequence[Archive]) -> Sandbox:
        args = DSecContainerRunArgs(container_image=self.image, memory_limit_mb=_MEMORY_MB)
        return await self.client.run_container(args, timeout=_CREATE_S)

    async def fill(self, sandbox: Sandbox, needs: Sequence[Archive]) -> None: ...


class _Unpacked(_Way):
    async def fill(self, sandbox: Sandbox, needs: Sequence[Archive]) -> None:
        for need in needs:
            content = await asyncio.to_thread(need.path.read_bytes)
            (await sandbox.run(("tar", "xzf", "-", "-C", "/"), stdin=content, timeout=600)).check()


class _Composed(_Way):
    def __init__(self, client: DSecClient, ground: Ground, needs: _Needs, refs: dict[str, str]) -> None:
        super().__init__(client, ground, needs)
        self._refs = refs

    async def create(self, needs: Sequence[Archive]) -> Sandbox:
        workspace, *toolkits = (self._refs[need.name] for need in needs)
        args = DSecContainerRunArgs(
            container_image=self.image, workspace=workspace, toolkits=toolkits, memory_limit_mb=_MEMORY_MB
        )
        return await self.client.run_container(args, timeout=_CREATE_S)


@contextlib.asynccontextmanager
async def _published(client: DSecClient, found: Archives, ground: Ground) -> AsyncIterator[dict[str, str]]:
    """An image of each archive, by the archive's name; gone afterwards."""
    tag = "".join(filter(str.isalnum, ground.directory.name))
    refs: dict[str, str] = {}
    try:
        for archive in (*found.workspaces, *found.toolkits):
            refs[archive.name] = f"bench-layers/{archive.name}:{tag}"
            await client.build_image(refs[archive.name], f"tar:{archive.path}", kind=archive.kind)
        yield refs
    finally:
        for ref in refs.values():
            with contextlib.suppress(ImageNotFoundError):
                await client.remove_image(ref)


async def measure(ground: Ground, samples: int, progress: Progress) -> Report:
    where = ground.directory / NAME
    where.mkdir()
    try:
        progress(0, 1, "fetching trees")
        found = await gather(where)
        async with ground.node.running() as client:
            progress(0, 1, "building layers")
            begin, before = time.perf_counter(), await asyncio.to_thread(written, where)
            async with _published(client, found, ground) as refs:
                built = (time.perf_counter() - begin, (await asyncio.to_thread(written, where) - before) / _MB)
                ways = await _measure(client, ground, found, refs, samples, progress)
    finally:
        await asyncio.to_thread(shutil.rmtree, where)
    return _report(ground, ways, found, built)


async def _measure(
    client: DSecClient, ground: Ground, found: Archives, refs: dict[str, str], samples: int, progress: Progress
) -> dict[str, Measured]:
    ways: dict[str, _Way] = {
        "ours": _Composed(client, ground, _Needs(found), refs),
        "tar_gz": _Unpacked(client, ground, _Needs(found)),
    }
    contestants = {name: Contestant(way.turn) for name, way in ways.items()}
    seconds = await interleave(contestants, samples, rounds=max(1, samples // AT_ONCE), progress=progress)
    # the first turn of each was for the caches
    return {name: Measured(seconds[name], way.written_mb[1:]) for name, way in ways.items()}


def _report(ground: Ground, ways: dict[str, Measured], found: Archives, built: tuple[float, float]) -> Report:
    ours, peer = ways["ours"], ways["tar_gz"]
    everything = (*found.workspaces, *found.toolkits)
    detail = {
        "written_mb": median(ours.written_mb),
        "layers_build_s": built[0],
        "layers_written_once_mb": built[1],
        "workspace_files": sum(each.files for each in found.workspaces) / len(found.workspaces),
        "trees_mb": sum(each.content_bytes for each in everything) / _MB,
    }
    count, made = len(ours.ready_s), len(ours.written_mb)
    return Report(
        name=NAME,
        ours=Figure(median(ours.ready_s), "s", count, percentile(ours.ready_s, 0.99), detail),
        peers={
            "tar_gz_ready": Figure(median(peer.ready_s), "s", len(peer.ready_s), percentile(peer.ready_s, 0.99)),
            "tar_gz_written": Figure(median(peer.written_mb), "MB", made, percentile(peer.written_mb, 0.99)),
        },
        floor=None,
        ratios={
            "tar_gz_ready": median(ours.ready_s) / median(peer.ready_s),
            "tar_gz_written": median(ours.written_mb) / median(peer.written_mb) if median(peer.written_mb) else None,
        },
        machine=machine(ground.load),
        notes={"trees": found.origin},
    )
