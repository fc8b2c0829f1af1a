"""`dsec job`: jobs, and what belongs to them."""

from __future__ import annotations

from typing import Annotated

import typer

from libdsec.client import DSecClient
from libdsec.protocol.jobs import JobInfo
from libdsec.protocol.lifecycle import FINAL

from .completion import jobs
from .options import JsonOption
from .outcome import execute
from .output import ago, amount, emit, printable, say, table

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="List and show jobs: sandboxes and rollouts that are paused, resumed and stopped together.",
)


@app.command()
def ls(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only names.")] = False, json: JsonOption = False
) -> None:
    """List jobs.

    \b
    dsec job ls
    dsec job ls -q
    """

    async def work(client: DSecClient) -> None:
        found = await client.jobs()
        if json:
            emit(found)
        elif quiet:
            for info in found:
                say(printable(info.job))
        else:
            table(("JOB", "SANDBOXES", "ROLLOUTS", "MEMORY", "STATES"), [_row(info) for info in found])

    execute(json, work)


@app.command()
def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its name.", autocompletion=jobs)], json: JsonOption = False
) -> None:
    """Show a job: its sandboxes by their states, and its rollouts with who holds them.

    \b
    dsec job show night-17
    """

    async def work(client: DSecClient) -> None:
        info = await client.job(job)
        rollouts = await client.rollouts(job)
        if json:
            emit({"job": info, "rollouts": rollouts})
            return
        say(f"job        {printable(info.job)}")
        say(f"sandboxes  {_states(info) or 'none'}")
        say(f"memory     {amount(info.memory_bytes)}")
        if not rollouts:
            return
        say("")
        rows = [
            (
                rollout.name,
                str(rollout.steps),
                "held" if rollout.held else "free",
                str(rollout.epoch),
                ago(rollout.created_at),
            )
            for rollout in rollouts
        ]
        table(("ROLLOUT", "STEPS", "LEASE", "EPOCH", "AGE"), rows)

    execute(json, work)


def _row(info: JobInfo) -> tuple[str, ...]:
    living = sum(count for state, count in info.sandboxes.items() if state not in FINAL)
    return info.job, str(living), str(info.rollouts), amount(info.memory_bytes), _states(info)


def _states(info: JobInfo) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(info.sandboxes.items()))
