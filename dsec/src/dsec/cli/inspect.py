"""`dsec inspect`: all there is to know about a sandbox."""

from __future__ import annotations

import time

import typer

from libdsec.client import DSecClient

from .options import JsonOption, SandboxArgument, find_sandbox
from .outcome import execute
from .output import amount, emit, printable, say, whole

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_NAMES = {"paused_at": "paused since", "paused_s": "paused before, s"}


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
            _show(whole(info), 0)

    execute(json, work)


def _show(values: dict[str, object], depth: int) -> None:
    told = {_NAMES.get(name, name): value for name, value in values.items() if _tells(value)}
    if not told.get(_NAMES["paused_s"], True):
        del told[_NAMES["paused_s"]]
    width = max(map(len, told), default=0)
    for name, value in told.items():
        if isinstance(value, dict):
            say(f"{'  ' * depth}{printable(name)}")
            _show(value, depth + 1)
        else:
            say(f"{'  ' * depth}{printable(name).ljust(width)}  {printable(_in_words(name, value))}")


def _tells(value: object) -> bool:
    if isinstance(value, dict):
        return any(_tells(inner) for inner in value.values())
    return value not in (None, (), [], "")


def _in_words(name: str, value: object) -> str:
    """A value as people read it; what the unit is stands at the end of its name."""
    if isinstance(value, float) and name.endswith(("_at", "since")):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    if isinstance(value, int) and name.endswith("_bytes"):
        return amount(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
