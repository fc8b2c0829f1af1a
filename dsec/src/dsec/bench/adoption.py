"""`adoption`: from the start of a server to the answers of all sandboxes that a killed one has left.

So many sandboxes run; the server is killed with SIGKILL and started again; every sandbox is asked to run `true`. What
counts is the time from the new server's start (its process is made then) until the last of them has answered. The floor
is the same question to the same sandboxes without a kill in between.
"""

from __future__ import annotations

import asyncio
import time

from libdsec import DSecContainerRunArgs, Sandbox
from libdsec.protocol.errors import InvalidArgumentError

from .figures import Figure, Report, report
from .ground import Ground
from .machine import machine
from .node import OwnNode
from .rounds import Progress

NAME = "adoption"
SAMPLES = 500
IN_FLIGHT = 32


async def _all_answer(sandboxes: list[Sandbox]) -> float:
    """Seconds until each has run a command, a few at a time."""
    waiting = list(sandboxes)
    begin = time.perf_counter()

    async def worker() -> None:
        while waiting:
            (await waiting.pop().run(("/bin/true",))).check()

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(worker())
    return time.perf_counter() - begin


async def measure(ground: Ground, samples: int, progress: Progress) -> Report:
    """`samples` is how many sandboxes there are.

    :raises InvalidArgumentError: the node is the user's: it is not ours to kill.
    """
    node = ground.node
    if not isinstance(node, OwnNode):
        raise InvalidArgumentError("cannot measure adoption on a node that is not the bench's own: it is killed")
    async with node.running() as client:
        args = DSecContainerRunArgs(container_image=ground.image)
        sandboxes: list[Sandbox] = []
        while len(sandboxes) < samples:
            wanted = min(IN_FLIGHT, samples - len(sandboxes))
            sandboxes += await asyncio.gather(*(client.run_container(args) for _ in range(wanted)))
            progress(len(sandboxes), samples, "creating")
        await _all_answer(sandboxes)
        floor = await _all_answer(sandboxes)
        progress(samples, samples, "killed")
        begin = time.perf_counter()
        await node.killed_and_started_again()
        killed = time.perf_counter() - begin
        await _all_answer(sandboxes)
        ours = time.perf_counter() - begin
    figure = Figure(ours, "s", samples, detail={"end_of_the_killed_s": killed})
    return report(NAME, machine(ground.load), figure, {}, Figure(floor, "s", samples))
