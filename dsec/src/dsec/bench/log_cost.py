"""`log-cost`: what the command log costs: the same calls on a node with it and on one without, in turns.

Three things: `run_shell("true")` (the median counts), the same with 100 KB of output, and whole lives a second, 16 in
flight. Each ratio is ours divided by the node without a log: of times one above 1 is what the log costs, of the
rate one below 1.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec

from libdsec import DSecClient, DSecContainerRunArgs, Sandbox
from libdsec.protocol.errors import InvalidArgumentError

from .figures import Figure, Report, median, of_times
from .ground import Ground
from .lifecycle import IN_FLIGHT, lives_of
from .machine import machine
from .node import Node, OwnNode
from .rounds import Contestant, Progress, interleave

NAME = "log-cost"
SAMPLES = 1500
LIVES_ROUNDS = 10
OUTPUT = 100_000

_PRINT = f"head -c {OUTPUT} /dev/zero | tr '\\0' x"


async def _run(sandbox: Sandbox, command: str, count: int) -> list[float]:
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        result = await sandbox.run_shell(command)
        times.append((time.perf_counter() - begin) * 1e3)
        result.check()
    return times


async def _times(nodes: Mapping[str, Sandbox], samples: int, progress: Progress) -> dict[str, list[float]]:
    contestants = {}
    for name, sandbox in nodes.items():
        contestants[name] = Contestant(partial(_run, sandbox, "true"))
        contestants[f"{name}_100kb"] = Contestant(partial(_run, sandbox, _PRINT), 0.3)
    return await interleave(contestants, samples, progress=progress)


async def _rates(bursts: Mapping[str, Callable[[int], Awaitable[float]]], lives: int) -> dict[str, float]:
    """The median rate of rounds: one that a checkpoint or another program fell into says nothing of the rest."""
    count = max(IN_FLIGHT, lives // LIVES_ROUNDS // IN_FLIGHT * IN_FLIGHT)
    rates: dict[str, list[float]] = {name: [] for name in bursts}
    for _ in range(LIVES_ROUNDS + 1):
        for name, burst in bursts.items():
            rates[name].append(count / await burst(count))
    return {name: median(found[1:]) for name, found in rates.items()}


async def measure(ground: Ground, samples: int, progress: Progress) -> Report:
    """:raises InvalidArgumentError: the node is the user's: another one is needed beside it."""
    if not ground.node.owned:
        raise InvalidArgumentError("cannot measure log-cost on a node that is not the bench's own")
    unlogged = OwnNode(ground.directory, "-unlogged", ("dsec.bench.unlogged",))
    async with contextlib.AsyncExitStack() as stack:
        clients: dict[str, DSecClient] = {}
        sandboxes: dict[str, Sandbox] = {}
        nodes: dict[str, Node] = {"ours": ground.node, "no_log": unlogged}
        for name, node in nodes.items():
            client = clients[name] = await stack.enter_async_context(node.running())
            if node is unlogged:
                await client.build_image(ground.image, f"dir:{ground.lower}")
            args = DSecContainerRunArgs(container_image=ground.image)
            sandboxes[name] = await stack.enter_async_context(await client.run_container(args))
        times = await _times(sandboxes, samples, progress)
        bursts = {name: lives_of(client, ground.image) for name, client in clients.items()}
        rates = await _rates(bursts, samples)
    ours = _figures(times, rates, "ours")
    other = _figures(times, rates, "no_log")
    return Report(
        name=NAME,
        ours=msgspec.structs.replace(ours["no_log"], detail={name: figure.value for name, figure in ours.items()}),
        peers=dict(other),
        floor=None,
        ratios={name: ours[name].value / figure.value for name, figure in other.items()},
        machine=machine(ground.load),
    )


def _figures(times: Mapping[str, list[float]], rates: Mapping[str, float], node: str) -> dict[str, Figure]:
    """What was measured of one node, by what it is compared as."""
    return {
        "no_log": of_times(times[node]),
        "no_log_100kb": of_times(times[f"{node}_100kb"]),
        "no_log_lifecycle": Figure(rates[node], "1/s", LIVES_ROUNDS),
    }
