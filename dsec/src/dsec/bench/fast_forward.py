"""`fast-forward`: recorded steps a second that a program runs through when it attaches again.

A rollout of one sandbox has so many steps on its log (commands that print a little, files that are read); then the
same program runs again from the top under a new lease. What counts is the steps over the time from `attach` to the last
one's answer. The peer is the same calls without a log to tell them: each goes to the sandbox and back.
"""

from __future__ import annotations

import time

from libdsec import DSecClient, DSecContainerRunArgs
from libdsec.protocol.ids import new_token

from .figures import Report, of_rate, report
from .ground import Ground
from .machine import machine
from .rounds import Progress

NAME = "fast-forward"
SAMPLES = 4000
ROUNDS = 5


async def _program(client: DSecClient, rollout: str, image: str, steps: int) -> tuple[float, int]:
    """Seconds, and how many steps were told from the log."""
    begin = time.perf_counter()
    async with await client.attach(rollout) as attached:
        sandbox = await attached.run_container(DSecContainerRunArgs(container_image=image))
        for number in range(steps - 1):
            if number % 4 == 3:
                await sandbox.files.read("/etc/os-release")
            else:
                (await sandbox.run(("/bin/echo", str(number)))).check()
        return time.perf_counter() - begin, attached.replayed


async def measure(ground: Ground, samples: int, progress: Progress) -> Report:
    rollout = f"bench/{new_token()}"
    async with ground.node.running() as client:
        progress(0, ROUNDS, "recording")
        ran, _ = await _program(client, rollout, ground.image, samples)
        seconds = []
        for number in range(ROUNDS):
            progress(number + 1, ROUNDS + 1, "replaying")
            taken, replayed = await _program(client, rollout, ground.image, samples)
            if replayed != samples:
                raise RuntimeError(f"{replayed} of {samples} steps were told from the log")
            seconds.append(taken)
        for info in await client.list(rollout=rollout):
            await client.stop(info.id)
    best = {"best": samples / min(seconds)}
    ours = of_rate(samples * ROUNDS, sum(seconds), best)
    return report(NAME, machine(ground.load), ours, {"run": of_rate(samples, ran)}, None)
