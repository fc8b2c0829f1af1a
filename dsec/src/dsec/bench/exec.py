"""`exec`: one `sh -c true` in something that runs already, there and back. The median counts.

Ours: `run_shell("true")` through the SDK, under the image's /bin/sh. crun, runc, docker: their `exec`, from its spawn
to its end. The floor: a C program that forks, enters the namespaces by `setns`, forks again (for the pid namespace),
executes, and waits.
"""

from __future__ import annotations

import time
from functools import partial

from libdsec import DSecContainerRunArgs, Sandbox

from . import peers
from .figures import Figure, Report, of_times, report
from .ground import Ground
from .machine import machine
from .native import Native
from .rounds import Contestant, Progress, interleave

NAME = "exec"
SAMPLES = 500
COMMAND = ("/bin/sh", "-c", "true")


async def _ours(sandbox: Sandbox, count: int) -> list[float]:
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        result = await sandbox.run_shell("true")
        times.append((time.perf_counter() - begin) * 1e3)
        result.check()
    return times


async def _peer(native: Native, peer: peers.PeerWithExec, count: int) -> list[float]:
    return (await native.spawn(peer.exec(COMMAND), count, wrap=peer.wrap)).total


async def _floor(native: Native, count: int) -> list[float]:
    return (await native.floor_exec(count, COMMAND)).total


async def measure(ground: Ground, samples: int, progress: Progress) -> Report:
    async with (
        ground.node.running() as client,
        await client.run_container(DSecContainerRunArgs(container_image=ground.image)) as sandbox,
        peers.peers_with_exec(ground.directory / NAME, ground.lower) as found,
    ):
        contestants = {
            "ours": Contestant(partial(_ours, sandbox)),
            "floor": Contestant(partial(_floor, ground.native)),
        }
        for name, peer in found.items():
            if peer is not None:
                contestants[name] = Contestant(partial(_peer, ground.native, peer), peer.share)
        times = await interleave(contestants, samples, progress=progress)
    others: dict[str, Figure | None] = {name: of_times(times[name]) if name in times else None for name in found}
    return report(NAME, machine(ground.load), of_times(times["ours"]), others, of_times(times["floor"]))
