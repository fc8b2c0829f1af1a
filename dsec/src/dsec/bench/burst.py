"""`burst`: many sandboxes at once over many images that are not here yet, read on demand or pulled whole.

Five sandboxes an image, all begun at once, each ready when it has read its image's working set (a twelfth of the
workspace, see `crowd`). Everything comes from an HTTP server on loopback that begins each answer 5 ms late and sends
100 MB a second to all together. Ours: a node that has nothing, with that server as its shared store. The peer pulls all
of each image with skopeo, the floor does the least that any pull does; both then run the leanest containers that there
are, until they have read the same (`pulling`).

Figures: until all are ready; what was written to the disk until then (by the disk's own count, after a sync); what was
fetched, against the bytes of all images, each layer counted once. `detail` has what was fetched for each byte that was
needed, and for chunks of 128, 256 and 512 KiB, with few images, the same and the p99 of how long a read waits (of the
worst layer).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from libdsec import DSecClient, DSecContainerRunArgs, Sandbox
from libdsec.protocol.errors import InternalError
from libdsec.protocol.images import ImageStats

from . import crowd, registry
from .archives import gather
from .crowd import Workspace
from .disk import written
from .figures import Figure, Report, percentile
from .ground import Ground
from .machine import machine
from .node import OwnNode
from .pulling import Pulled, Pulling
from .registry import Blobs
from .rounds import Progress

NAME = "burst"
SAMPLES = 200
SHARED_BY = 5
"""Sandboxes of one image."""
LATENCY_MS, BANDWIDTH_MB = 5.0, 100.0
TREES = ("django", "sympy", "botocore")
BASE = "burst/base:1"
CHUNKS_KIB = (128, 256, 512)
CHUNK_IMAGES = 4
"""Of the comparison of chunk sizes."""
_CREATES = 32
_MB = 1e6


class Run(msgspec.Struct, frozen=True):
    """What one way cost."""

    seconds: float
    each_s: list[float]
    written_mb: float
    fetched_mb: float
    layers: tuple[ImageStats, ...] = ()


class _Field(msgspec.Struct, frozen=True):
    ground: Ground
    where: Path
    files: crowd.Files


async def measure(ground: Ground, samples: int, progress: Progress) -> Report:
    where = ground.directory / NAME
    where.mkdir()
    sizes: dict[int, tuple[Run, list[Workspace]]] = {}
    try:
        progress(0, 6, "fetching trees")
        found = await gather(where, toolkits={})
        chosen = [each for each in found.workspaces if each.name in TREES] or list(found.workspaces)
        files = await asyncio.to_thread(crowd.read_trees, chosen)
        progress(1, 6, "packing images")
        images = max(1, samples // SHARED_BY)
        blobs = await asyncio.to_thread(registry.write, ground.lower, files, images, where / "store")
        field = _Field(ground, where, files)
        progress(2, 6, "publishing images")
        base_bytes, workspaces = await _publish(field, where / "store", images)
        progress(3, 6, "pulling")
        least = await _pull(field, blobs, Pulling.least)
        skopeo = await _pull(field, blobs, Pulling.skopeo) if shutil.which("skopeo") else None
        progress(4, 6, "on demand")
        ours = await _on_demand(field, "", where / "store", workspaces, samples)
        for size in CHUNKS_KIB:
            progress(5, 6, f"chunks of {size} KiB")
            sizes[size] = await _with_chunks(field, size)
    finally:
        await asyncio.to_thread(shutil.rmtree, where)
    image_mb = (base_bytes + sum(each.content_bytes for each in workspaces)) / _MB
    return _report(ground.load, workspaces, ours, least, skopeo, sizes, image_mb, found.origin)


async def _publish(field: _Field, store: Path, count: int, chunk_kib: int = 0) -> tuple[int, list[Workspace]]:
    """By a node of its own. The bytes of the base's contents, and the workspaces."""
    os.makedirs(store, exist_ok=True)
    program = ("dsec", "serve") if not chunk_kib else ("dsec.bench.chunked", "--chunk-kib", str(chunk_kib))
    publisher = OwnNode(field.ground.directory, f"-publisher{chunk_kib}", program, {"DSEC_STORE": str(store)})
    async with publisher.running() as client:
        base = await client.build_image(BASE, f"dir:{field.ground.lower}")
        await client.publish_image(BASE)
        scratch = field.where / "one.tar"
        workspaces = [await crowd.publish(client, field.files, number, scratch) for number in range(count)]
    await asyncio.to_thread(shutil.rmtree, publisher.state_dir)
    return sum(layer.data_bytes for layer in base.layers), workspaces


async def _pull(field: _Field, blobs: Blobs, how: Callable[[Pulling], Awaitable[Pulled]]) -> Run:
    target = field.where / "pulled"
    target.mkdir()
    async with crowd.served(field.where / "store", LATENCY_MS, BANDWIDTH_MB) as url:
        before = await asyncio.to_thread(written, field.where)
        pulled = await how(Pulling(url, blobs, SHARED_BY, target, field.ground.directory))
        after = await asyncio.to_thread(written, field.where)
        sent = (await crowd.counts(url)).bytes
    await asyncio.to_thread(shutil.rmtree, target)
    return Run(pulled.seconds, pulled.each_s, (after - before) / _MB, sent / _MB)


async def _on_demand(field: _Field, name: str, store: Path, workspaces: Sequence[Workspace], count: int) -> Run:
    """On a node that has nothing."""
    async with crowd.served(store, LATENCY_MS, BANDWIDTH_MB) as url:
        node = OwnNode(field.ground.directory, f"-burst{name}", settings={"DSEC_STORE": url})
        async with node.running() as client:
            before = await asyncio.to_thread(written, field.where)
            begin = time.perf_counter()
            each, sandboxes = await _all_ready(client, workspaces, count)
            seconds = time.perf_counter() - begin
            after = await asyncio.to_thread(written, field.where)
            sent = (await crowd.counts(url)).bytes
            layers = (await client.image_stats()).layers
            for sandbox in sandboxes:
                await sandbox.stop()
        await asyncio.to_thread(shutil.rmtree, node.state_dir)
    return Run(seconds, each, (after - before) / _MB, sent / _MB, layers)


async def _all_ready(
    client: DSecClient, workspaces: Sequence[Workspace], count: int
) -> tuple[list[float], list[Sandbox]]:
    """When each was ready, and all of them, running."""
    gate = asyncio.Semaphore(_CREATES)
    begin = time.perf_counter()
    sandboxes: list[Sandbox] = []

    async def one(number: int) -> float:
        workspace = workspaces[number % len(workspaces)]
        args = DSecContainerRunArgs(container_image=BASE, workspace=workspace.ref)
        async with gate:
            sandbox = await client.run_container(args, timeout=300)
            sandboxes.append(sandbox)
            read = (await sandbox.run_shell(crowd.READ, timeout=300)).check()
        if int(read.stdout) != workspace.needed_bytes:
            raise InternalError(f"cannot count on {workspace.ref}: {read.stdout!r} of {workspace.needed_bytes} bytes")
        return time.perf_counter() - begin

    return list(await asyncio.gather(*(one(number) for number in range(count)))), sandboxes


async def _with_chunks(field: _Field, size: int) -> tuple[Run, list[Workspace]]:
    store = field.where / f"store-{size}"
    await asyncio.to_thread(store.mkdir)
    _, workspaces = await _publish(field, store, CHUNK_IMAGES, size)
    return await _on_demand(field, str(size), store, workspaces, len(workspaces)), workspaces


def _waits(run: Run) -> float:
    """Milliseconds: the p99 of the layer where it is the longest."""
    return max((layer.wait_p99_ms for layer in run.layers), default=0.0)


def _amplification(run: Run, workspaces: Sequence[Workspace]) -> float:
    """Bytes that came, uncompressed, for each that was asked for, of the workspaces."""
    refs = {each.ref for each in workspaces}
    present = sum(layer.present_bytes for layer in run.layers if refs & set(layer.refs))
    return present / sum(each.needed_bytes for each in workspaces)


def _report(
    load: float,
    workspaces: Sequence[Workspace],
    ours: Run,
    least: Run,
    skopeo: Run | None,
    sizes: dict[int, tuple[Run, list[Workspace]]],
    image_mb: float,
    origin: str,
) -> Report:
    count, images = len(ours.each_s), len(workspaces)
    detail = {
        "images": float(images),
        "written_mb": ours.written_mb,
        "fetched_mb": ours.fetched_mb,
        "pulled_mb": least.fetched_mb,
        "needed_mb": sum(each.needed_bytes for each in workspaces) / _MB,
        "amplification": _amplification(ours, workspaces),
        "read_p99_ms": _waits(ours),
    }
    for size, (run, some) in sizes.items():
        detail[f"amplification_{size}k"] = _amplification(run, some)
        detail[f"read_p99_{size}k_ms"] = _waits(run)
        detail[f"fetched_{size}k_mb"] = run.fetched_mb
    return Report(
        name=NAME,
        ours=Figure(ours.seconds, "s", count, percentile(ours.each_s, 0.99), detail),
        peers={
            "skopeo_ready": None if skopeo is None else _ready(skopeo),
            "skopeo_written": None if skopeo is None else Figure(skopeo.written_mb, "MB", images),
            "least_written": Figure(least.written_mb, "MB", images),
            "image_bytes": Figure(image_mb, "MB", images),
        },
        floor=_ready(least),
        ratios={
            "skopeo_ready": None if skopeo is None else ours.seconds / skopeo.seconds,
            "skopeo_written": None if skopeo is None else _ratio(ours.written_mb, skopeo.written_mb),
            "least_written": _ratio(ours.written_mb, least.written_mb),
            "image_bytes": ours.fetched_mb / image_mb,
            "floor": ours.seconds / least.seconds,
        },
        machine=machine(load),
        notes={"trees": origin},
    )


def _ready(run: Run) -> Figure:
    return Figure(run.seconds, "s", len(run.each_s), percentile(run.each_s, 0.99))


def _ratio(ours: float, other: float) -> float | None:
    return ours / other if other > 0 else None
