"""`dsec ls`: the sandboxes there are."""

from __future__ import annotations

from typing import Annotated

import typer

from libdsec.client import DSecClient
from libdsec.protocol.lifecycle import FINAL
from libdsec.protocol.spec import SandboxInfo

from .completion import jobs
from .options import JsonOption, LabelOption, pairs
from .outcome import execute
from .output import ago, amount, emit, say, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def ls(
    all: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    label: LabelOption = None,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Of this job.", autocompletion=jobs)] = None,
    rollout: Annotated[str | None, typer.Option("--rollout", metavar="NAME", help="Of this rollout.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only ids.")] = False,
    json: JsonOption = False,
) -> None:
    """List sandboxes.

    \b
    dsec ls
    dsec ls --all --label task=9658
    dsec ls --job night-17
    dsec stop $(dsec ls -q)
    """

    async def work(client: DSecClient) -> None:
        found = await client.list(labels=pairs("--label", label), job=job, rollout=rollout, include_final=all)
        found = tuple(sorted(found, key=lambda info: info.created_at))
        if json:
            emit(found)
        elif quiet:
            for info in found:
                say(info.id)
        else:
            headers = ("ID", "IMAGE", "STATE", "AGE", "UNUSED", "MEMORY", "CPUS", "JOB", "ROLLOUT", "LABELS")
            table(headers, [_row(info) for info in found])

    execute(json, work)


def _row(info: SandboxInfo) -> tuple[str, ...]:
    limits = info.spec.limits
    return (
        info.id,
        info.spec.workspace or info.spec.image,
        _state(info),
        ago(info.created_at),
        "-" if info.state in FINAL else ago(info.last_used_at),
        amount(limits.memory_bytes),
        "-" if limits.cpu_cores is None else f"{limits.cpu_cores:g}",
        info.job or info.spec.job or "-",
        info.rollout or info.spec.rollout or "-",
        " ".join(f"{name}={value}" for name, value in sorted(info.spec.labels.items())),
    )


def _state(info: SandboxInfo) -> str:
    if info.paused_at is not None and info.state not in FINAL:
        return f"{info.state} for {ago(info.paused_at)}"
    return info.state + (f" ({info.cause})" if info.cause else "")
