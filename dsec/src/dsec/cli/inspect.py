"""`dsec inspect`: all there is to know about a sandbox."""

from __future__ import annotations

import msgspec
import typer

from libdsec.client import DSecClient

from .options import JsonOption, SandboxArgument, find_sandbox
from .outcome import execute
from .output import emit, printable, say

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def inspect(sandbox: SandboxArgument, json: JsonOption = False) -> None:
    """Show all there is to know about a sandbox.

    \b
    dsec inspect 3f2k
    dsec inspect --json 3f2k | jq .spec.limits
    """

    async def work(client: DSecClient) -> None:
        info = await (await find_sandbox(client, sandbox)).info()
        if json:
            emit(info)
        else:
            _show(msgspec.to_builtins(info), 0)

    execute(json, work)


def _show(values: dict[str, object], depth: int) -> None:
    width = max(map(len, values), default=0)
    for name, value in values.items():
        if isinstance(value, dict) and value:
            say(f"{'  ' * depth}{printable(name)}")
            _show(value, depth + 1)
        elif value not in (None, {}, (), []):
            say(f"{'  ' * depth}{printable(name).ljust(width)}  {printable(str(value))}")
