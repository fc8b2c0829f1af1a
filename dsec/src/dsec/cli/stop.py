"""`dsec stop`: sandboxes that are not needed any more."""

from __future__ import annotations

from typing import Annotated

import typer

from libdsec.client import DSecClient
from libdsec.protocol.errors import InvalidArgumentError

from . import bulk
from .options import JobOption, JsonOption, LabelOption, SandboxesArgument, pairs
from .outcome import execute

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def stop(
    sandboxes: SandboxesArgument = None,
    all: Annotated[bool, typer.Option("--all", "-a", help="All there are.")] = False,
    label: LabelOption = None,
    job: JobOption = None,
    json: JsonOption = False,
) -> None:
    """Stop sandboxes for good, and give back all they used. Stopping one again is fine.

    \b
    dsec stop 3f2k 9qx
    dsec stop --label task=9658
    dsec stop --job night-17
    dsec stop --all

    Ends with 1 when some sandboxes of a job could not be stopped.
    """

    async def work(client: DSecClient) -> int:
        labels = pairs("--label", label)
        if bool(sandboxes) + bool(all or labels) + (job is not None) != 1:
            raise InvalidArgumentError(
                "cannot tell what to stop: name sandboxes, or give --all or --label, or --job, and only one of these"
            )
        if job is not None:
            return await bulk.whole_job(job, client.stop_job, "stopping", "stopped", json)
        if sandboxes:
            ids = await bulk.chosen(client, sandboxes)
        else:
            ids = [info.id for info in await client.list(labels=labels)]
        return await bulk.each(ids, client.stop, "stopping", json)

    execute(json, work)
