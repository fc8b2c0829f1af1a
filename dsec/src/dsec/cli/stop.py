"""`dsec stop`: sandboxes that are not needed any more."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from libdsec.client import DSecClient
from libdsec.protocol.errors import DSecError, InvalidArgumentError
from libdsec.protocol.spec import SandboxInfo

from .options import JsonOption, LabelOption, find_sandbox, pairs
from .outcome import execute, report
from .output import emit, say, waiting

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_AT_ONCE = 16


@app.command()
def stop(
    sandboxes: Annotated[list[str] | None, typer.Argument(metavar="SANDBOX...", help="Ids, or beginnings.")] = None,
    all: Annotated[bool, typer.Option("--all", "-a", help="All there are.")] = False,
    label: LabelOption = None,
    json: JsonOption = False,
) -> None:
    """Stop sandboxes for good, and give back all they used. Stopping one again is fine.

    \b
    dsec stop 3f2k 9qx
    dsec stop --label task=9658
    dsec stop --all
    """

    async def work(client: DSecClient) -> int:
        ids = await _chosen(client, sandboxes or [], all, pairs("--label", label))
        gate = asyncio.Semaphore(_AT_ONCE)

        async def stop_one(sandbox_id: str) -> SandboxInfo | DSecError:
            async with gate:
                try:
                    return await client.stop(sandbox_id)
                except DSecError as error:  # the others are stopped all the same
                    return error

        async with waiting(f"stopping {len(ids)} sandboxes"):
            answers = await asyncio.gather(*map(stop_one, ids))
        if json:
            emit([{"error": a.body()} if isinstance(a, DSecError) else a for a in answers])
        for answer in answers:
            if not json and isinstance(answer, SandboxInfo):
                say(answer.id)
            elif not json and isinstance(answer, DSecError):
                report(False, answer)
        return max((a.exit_code for a in answers if isinstance(a, DSecError)), default=0)

    execute(json, work)


async def _chosen(client: DSecClient, named: list[str], all: bool, labels: dict[str, str]) -> list[str]:
    if bool(named) + bool(all or labels) != 1:
        raise InvalidArgumentError("cannot tell what to stop: name sandboxes, or give --all or --label, and not both")
    if named:
        return list(dict.fromkeys([(await find_sandbox(client, name)).id for name in named]))
    return [info.id for info in await client.list(labels=labels)]
