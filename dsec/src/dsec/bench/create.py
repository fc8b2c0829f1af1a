"""`create`: from the call to the first output of `/bin/sh -c 'echo ready'` in a new sandbox. The median counts.

Ours: `run_container` and then `run_shell` through the SDK, up to the result in hand, one at a time, layers warm. The
others: from the spawn of their program to the first byte of its output. What comes after (stop, removal) is not counted
in, and stands for ours in `detail`.
"""

from __future__ import annotations

import time
from functools import partial

from libdsec import DSecClient, DSecContainerRunArgs

from . import peers
from .figures import Figure, Report, median, of_times, report
from .ground import Ground
from .machine import machine
from .native import Native
from .rounds import Contestant, Progress, interleave

NAME = "create"
SAMPLES = 200
COMMAND = ("/bin/sh", "-c", "echo ready")


class _Ours:
    def __init__(self, client: DSecClient, image: str) -> None:
        self._client = client
        self._args = DSecContainerRunArgs(container_image=image)
        self.create_ms: list[float] = []
        self.stop_ms: list[float] = []

    async def turn(self, count: int) -> list[float]:
        return [await self._one() for _ in range(count)]

    async def _one(self) -> float:
        begin = time.perf_counter()
        sandbox = await self._client.run_container(self._args)
        try:
            created = time.perf_counter()
            result = await sandbox.run_shell("echo ready")
            end = time.perf_counter()
        finally:
            await sandbox.stop()
        result.check()
        self.create_ms.append((created - begin) * 1e3)
        self.stop_ms.append((time.perf_counter() - end) * 1e3)
        return (end - begin) * 1e3


async def _peer(native: Native, peer: peers.Peer, count: int) -> list[float]:
    return (await native.spawn(peer.run(COMMAND), count, wrap=peer.wrap)).first


async def _floor(native: Native, count: int) -> list[float]:
    return (await native.floor_create(count, COMMAND)).first


async def measure(ground: Ground, samples: int, progress: Progress) -> Report:
    async with (
        ground.node.running() as client,
        peers.peers(peers.NAMES, ground.directory / NAME, ground.lower) as found,
    ):
        ours = _Ours(client, ground.image)
        contestants = {"ours": Contestant(ours.turn), "floor": Contestant(partial(_floor, ground.native))}
        for name, peer in found.items():
            if peer is not None:
                contestants[name] = Contestant(partial(_peer, ground.native, peer), peer.share)
        times = await interleave(contestants, samples, progress=progress)
    detail = {"create_ms": median(ours.create_ms), "stop_ms": median(ours.stop_ms)}
    others: dict[str, Figure | None] = {name: of_times(times[name]) if name in times else None for name in found}
    return report(NAME, machine(ground.load), of_times(times["ours"], detail), others, of_times(times["floor"]))
