"""`dsec diff`: what a sandbox changed of its image."""

from __future__ import annotations

import typer

from libdsec.client import DSecClient

from .change_lines import change_line
from .options import JsonOption, SandboxArgument, find_sandbox
from .outcome import execute
from .output import amount, emit, say

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def diff(sandbox: SandboxArgument, json: JsonOption = False) -> None:
    """Show what was added (A), changed (C) and removed (D) in a sandbox.

    \b
    dsec diff 3f2k

    The sandbox stands still for a moment; one that is paused stays so. Of what was removed the top alone is shown.
    """

    async def work(client: DSecClient) -> None:
        found = await find_sandbox(client, sandbox)
        if json:
            emit([change async for change in found.diff()])
            return
        async for change in found.diff():
            size = f" ({amount(change.size)})" * (change.type == "file" and change.kind != "removed")
            say(change_line(change) + size)

    execute(json, work)
