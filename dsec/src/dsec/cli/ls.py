"""`dsec ls`: the sandboxes there are."""

from __future__ import annotations

from typing import Annotated

import typer

from libdsec.client import DSecClient
from libdsec.protocol.lifecycle import FINAL
from libdsec.protocol.spec import SandboxInfo

from .options import JsonOption, LabelOption, pairs
from .outcome import execute
from .output import ago, amount, emit, say, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def ls(
    all: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    label: LabelOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only ids.")] = False,
    json: JsonOption = False,
) -> None:
    """List sandboxes.

    \b
    dsec ls
    dsec ls --all --label task=9658
    dsec stop $(dsec ls -q)
    """

    async def work(client: DSecClient) -> None:
        found = await client.list(labels=pairs("--label", label), include_final=all)
        found = tuple(sorted(found, key=lambda info: info.created_at))
        if json:
            emit(found)
        elif quiet:
            for info in found:
                say(info.id)
        else:
            headers = ("ID", "IMAGE", "STATE", "AGE", "UNUSED", "MEMORY", "CPUS", "LABELS")
            table(headers, [_row(info) for info in found])

    execute(json, work)


def _row(info: SandboxInfo) -> tuple[str, ...]:
    limits = info.spec.limits
    return (
        info.id,
        info.spec.workspace or info.spec.image,
        info.state + (f" ({info.cause})" if info.cause else ""),
        ago(info.created_at),
        "-" if info.state in FINAL else ago(info.last_used_at),
        amount(limits.memory_bytes),
        "-" if limits.cpu_cores is None else f"{limits.cpu_cores:g}",
        " ".join(f"{name}={value}" for name, value in sorted(info.spec.labels.items())),
    )
