"""`dsec rollout`: agents over many tasks, each in a sandbox of its own."""

from __future__ import annotations

import asyncio
import secrets
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dsec.environments import load
from dsec.environments.image import HostImage, host_image
from dsec.rollout import report as files
from dsec.rollout import tables
from dsec.rollout.agents import make_agent
from dsec.rollout.outcome import RolloutReport, totals
from dsec.rollout.progress import Display
from dsec.rollout.runner import choose
from dsec.rollout.runner import run as run_all
from dsec.rollout.stages import Interrupt, Settings
from libdsec.client import DSecClient
from libdsec.protocol.errors import ImageNotFoundError, InvalidArgumentError

from .image_progress import shown
from .options import JsonOption, mebibytes, seconds
from .outcome import execute_alone, warn
from .output import emit

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Run agents over many tasks, each in a sandbox of its own, and show the reports.",
)

Environment = Annotated[str, typer.Argument(metavar="ENVIRONMENT", help="Which tasks: humaneval.")]
AgentOption = Annotated[str, typer.Option("--agent", help="oracle, broken, or command:PATH.")]
Image = Annotated[
    str | None, typer.Option("--image", envvar="DSEC_IMAGE", help="NAME:TAG; without it that of the host's release.")
]
Tasks = Annotated[str | None, typer.Option(metavar="N|IDS", help="The first N tasks, or ids separated by commas.")]
Parallel = Annotated[int, typer.Option("--parallel", "-p", min=1, max=4096, help="Rollouts at a time.")]
Directory = Annotated[Path | None, typer.Option("--report", help="Where report.json and report.html go.")]
Time = Annotated[float, typer.Option("--timeout", parser=seconds, metavar="TIME", help="For the grading of one task.")]
AgentTime = Annotated[float, typer.Option(parser=seconds, metavar="TIME", help="For the agent, on one task.")]
Memory = Annotated[float, typer.Option(parser=mebibytes, metavar="SIZE", help="Memory limit of a sandbox.")]
Build = Annotated[bool, typer.Option("--build", help="Build the host's image first if it is missing.")]


@app.command()
def run(
    environment: Environment,
    agent: AgentOption = "oracle",
    image: Image = None,
    tasks: Tasks = None,
    parallel: Parallel = 32,
    timeout: Time = "30s",  # type: ignore[assignment]
    agent_timeout: AgentTime = "10m",  # type: ignore[assignment]
    memory: Memory = "512m",  # type: ignore[assignment]
    report: Directory = None,
    build: Build = False,
    json: JsonOption = False,
) -> None:
    """Run an agent over the tasks of an environment.

    \b
    dsec rollout run humaneval --agent oracle --report reports/oracle
    dsec rollout run humaneval --agent command:./ask-my-model --tasks 20 --parallel 8
    dsec rollout run humaneval --tasks HumanEval/3,HumanEval/17 --json

    command:PATH runs a program of yours on this machine, once a task: the prompt is on its stdin, what it prints is the
    answer; DSEC_TASK and DSEC_SANDBOX are in its environment. Ctrl-C ends the run, gives the sandboxes back and reports
    what there is; a second one does not wait.

    Ends with 0 only if every task was run and nothing went wrong: tasks that fail are results, not errors.
    """

    async def work() -> int:
        rollouts = load(environment)
        acting = make_agent(agent)
        chosen = choose(rollouts.tasks(), tasks)
        if report is not None:
            files.make_directory(report)
        async with DSecClient() as client:
            settings = Settings(
                image=await _image(client, image, build),
                run_id=secrets.token_hex(6),
                timeout_s=timeout,
                agent_timeout_s=agent_timeout,
                memory_mb=int(memory),
            )
            interrupt = Interrupt()
            _listen(interrupt)
            with Display(Console(stderr=True), f"{rollouts.name} {acting.name}", len(chosen)) as display:
                done = await run_all(client, rollouts, acting, chosen, settings, parallel, interrupt, display)
        _tell(done, report, json)
        return 130 if done.interrupted else totals(done).exit_code

    execute_alone(json, work)


@app.command()
def show(
    report: Annotated[Path, typer.Argument(help="What --report named, or a report.json.")],
    task: Annotated[
        str | None, typer.Option("--task", help="All of one task: its answer and what was printed.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show a report.

    \b
    dsec rollout show reports/oracle
    dsec rollout show reports/oracle --task HumanEval/3
    """

    async def work() -> None:
        found = files.read(report)
        out = Console()
        if task is not None:
            outcome = next((o for o in found.outcomes if o.task == task), None)
            if outcome is None:
                raise InvalidArgumentError(f"cannot show task {task!r}: it is not in {report}", field="task")
            if json:
                emit(outcome)
            else:
                out.print(*tables.one(outcome), sep="\n", soft_wrap=True)
        elif json:
            emit({"totals": totals(found), "report": found})
        else:
            out.print(tables.results(found))
            out.print(tables.summary(found))

    execute_alone(json, work)


def _listen(interrupt: Interrupt) -> None:
    """The first Ctrl-C or SIGTERM ends the run in order, the next one at once."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        warn("ending: giving back the sandboxes")
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        interrupt.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, first)


async def _image(client: DSecClient, named: str | None, build: bool) -> str:
    """The image to use, which is there.

    :raises ImageNotFoundError: it is not; the remedy is the command that makes it.
    """
    image = host_image() if named is None else HostImage(named, "")
    if any(info.ref == image.ref for info in await client.images()):
        return image.ref
    if not (build and image.source):
        remedy = f"make it with `dsec image build {image.ref}`" + (", or add --build" if image.source else "")
        raise ImageNotFoundError(f"cannot run rollouts in {image.ref}: there is no such image", remedy=remedy)
    with shown(image.ref) as progress:
        await client.build_image(image.ref, image.source, packages=image.packages, progress=progress)
    return image.ref


def _tell(done: RolloutReport, directory: Path | None, json: bool) -> None:
    if json:
        emit({"totals": totals(done), "report": done})
    else:
        Console().print(tables.summary(done))
    if directory is not None:
        for path in files.write(done, directory):
            warn(f"wrote {path}")
