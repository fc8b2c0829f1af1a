"""A rollout that may be killed at any moment and started again: it goes on where it was, and ends as if undisturbed.

    preempted_rollout.py --rollout NAME --image REF --out FILE [--steps N]

Nothing here saves or restores anything. The program says its rollout's name, and the calls that were made before it was
killed return what they returned then. What it does next depends on what came before: it draws a random number in the
sandbox, which only the command log can tell it again, and every step adds to files that a step which ran twice, or not
at all, would leave different. The trajectory that it writes is the same, byte for byte, however often it was killed.
The random number stands in it as `<drawn>`, so that the trajectories of two rollouts can be compared too.
"""

# ruff: noqa: T201

import argparse
import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from libdsec import DSecClient, DSecContainerRunArgs, ExecResult, Sandbox

DRAW = "od -An -N8 -tx8 /dev/urandom | tr -d ' \\n'"

Entry = dict[str, Any]


class Trajectory:
    """What happened, step by step, without times and without what differs from one rollout to the next."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.drawn: str | None = None
        self.seen = hashlib.sha256()
        """Of all outputs so far: the next step is told it, and so depends on every one before."""

    def add(self, what: str, outcome: Entry, output: str) -> None:
        if self.drawn is not None:
            output = output.replace(self.drawn, "<drawn>")
        self.seen.update(output.encode())
        self.entries.append({"step": len(self.entries), "what": what, "output": output, **outcome})

    def ran(self, what: str, result: ExecResult) -> None:
        self.add(what, {"ended": result.ended, "exit_code": result.exit_code, "stderr": result.stderr}, result.stdout)

    def write(self, path: str) -> None:
        """All of it or nothing, as canonical JSON."""
        part = f"{path}.part"
        with open(part, "w", encoding="utf-8") as file:
            json.dump(self.entries, file, sort_keys=True, separators=(",", ":"))
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)


async def draw(sandbox: Sandbox, trajectory: Trajectory) -> None:
    result = (await sandbox.run_shell(DRAW)).check()
    assert len(result.stdout) == 16, result
    trajectory.drawn = result.stdout
    trajectory.ran("draw", result)


async def count(sandbox: Sandbox, trajectory: Trajectory) -> None:
    """Adds a line to the counter that tells whether anything ran twice; the line is what came before."""
    number, line = len(trajectory.entries), trajectory.seen.hexdigest()[:16]
    result = await sandbox.run_shell(f"echo {line} >> counter; wc -l < counter | tr -d ' '; exit {number % 3}")
    trajectory.ran("count", result)


async def write(sandbox: Sandbox, trajectory: Trajectory) -> None:
    number = len(trajectory.entries)
    content = f"{number} {trajectory.seen.hexdigest()} {trajectory.drawn}\n" * (1 + number % 5)
    size = await sandbox.files.write(f"notes/{number}", content, parents=True)
    trajectory.add("write", {"size": size}, "")


async def choose(sandbox: Sandbox, trajectory: Trajectory) -> None:
    """Which command comes next was drawn: a program that drew again would leave its recorded way."""
    assert trajectory.drawn is not None
    salt = int(trajectory.drawn, 16) % 1000
    result = await sandbox.run_shell(f"echo {salt} >> chosen; sort -u chosen | wc -l | tr -d ' '; cat drawn")
    trajectory.ran("choose", result)


async def read(sandbox: Sandbox, trajectory: Trajectory) -> None:
    entries = await sandbox.files.list("notes")
    last = max((int(entry.path) for entry in entries), default=0)
    trajectory.add("read", {"notes": len(entries)}, await sandbox.files.read_text(f"notes/{last}"))


async def fail(sandbox: Sandbox, trajectory: Trajectory) -> None:
    """What fails is part of a trajectory too."""
    present = await sandbox.files.exists(f"notes/{trajectory.seen.hexdigest()}")
    result = await sandbox.run_shell("cat counter missing | tail -n 1; ls missing", env={"LC_ALL": "C"})
    trajectory.ran("fail", result)
    trajectory.entries[-1]["present"] = present


TURNS: tuple[Callable[[Sandbox, Trajectory], Awaitable[None]], ...] = (count, write, choose, count, read, fail)


async def play(sandbox: Sandbox, trajectory: Trajectory, steps: int) -> None:
    await draw(sandbox, trajectory)
    await sandbox.files.write("drawn", trajectory.drawn or "")
    for number in range(steps):
        print(f"step {number} of {steps}", flush=True)
        await TURNS[number % len(TURNS)](sandbox, trajectory)
    trajectory.add("end", {}, await sandbox.files.read_text("counter"))


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rollout", required=True)
    options.add_argument("--image", required=True)
    options.add_argument("--out", required=True)
    options.add_argument("--steps", type=int, default=40)
    given = options.parse_args()
    async with DSecClient() as client, await client.attach(given.rollout, stop_after=600) as rollout:
        print(f"attached: {rollout.recorded} steps are recorded", flush=True)
        sandbox = await rollout.run_container(DSecContainerRunArgs(container_image=given.image, cwd="/tmp"))
        trajectory = Trajectory()
        await play(sandbox, trajectory, given.steps)
        await sandbox.stop()
        trajectory.write(given.out)
        print(f"done: {rollout.replayed} calls were answered from the log", flush=True)


asyncio.run(main())
