"""`dsec logs`: what happened to a sandbox."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from libdsec.client import DSecClient

from .options import JsonOption, SandboxArgument, find_sandbox
from .outcome import execute
from .output import emit, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def logs(
    sandbox: SandboxArgument,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The last entries, so many at most.")] = 1000,
    json: JsonOption = False,
) -> None:
    """Show what happened to a sandbox, oldest first.

    \b
    dsec logs 3f2k
    dsec logs -n 20 --json 3f2k
    """

    async def work(client: DSecClient) -> None:
        entries = await (await find_sandbox(client, sandbox)).logs(limit=limit)
        if json:
            emit(entries)
            return
        rows = [
            (
                time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at)) + f".{int(entry.at * 1000) % 1000:03d}",
                entry.event,
                " ".join(f"{name}={_short(value)}" for name, value in entry.detail.items() if _tells(value)),
            )
            for entry in entries
        ]
        table(("TIME", "EVENT", "DETAIL"), rows)

    execute(json, work)


def _tells(value: object) -> bool:
    return bool(value) and (not isinstance(value, dict) or any(value.values()))


def _short(value: object) -> object:
    """Of what an output stream printed, how much."""
    return value["total"] if isinstance(value, dict) and "total" in value else value
