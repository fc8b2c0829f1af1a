"""`dsec pause`: sandboxes that are not needed for a while."""

from __future__ import annotations

import typer

from libdsec.client import DSecClient

from . import bulk
from .options import JobOption, JsonOption, SandboxesArgument
from .outcome import execute

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def pause(sandboxes: SandboxesArgument = None, job: JobOption = None, json: JsonOption = False) -> None:
    """Freeze sandboxes and give back their memory. Pausing one again is fine.

    \b
    dsec pause 3f2k 9qx
    dsec pause --job night-17

    Whatever is asked of a paused sandbox resumes it first. Its idle time, its deadline and the timeouts of what runs in
    it stand still meanwhile; clocks inside go on. Ends with 1 when some sandboxes of a job could not be paused.
    """

    async def work(client: DSecClient) -> int:
        bulk.check_choice("pause", sandboxes or (), job)
        if job is not None:
            return await bulk.whole_job(job, client.pause_job, "pausing", "paused", json)
        ids = await bulk.chosen(client, sandboxes or ())
        return await bulk.each(ids, lambda name: client.sandbox(name).pause(), "pausing", json)

    execute(json, work)
