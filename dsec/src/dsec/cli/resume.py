"""`dsec resume`: paused sandboxes go on."""

from __future__ import annotations

import typer

from libdsec.client import DSecClient

from . import bulk
from .options import JobOption, JsonOption, SandboxesArgument
from .outcome import execute

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def resume(sandboxes: SandboxesArgument = None, job: JobOption = None, json: JsonOption = False) -> None:
    """Let paused sandboxes go on. Resuming one that runs is fine.

    \b
    dsec resume 3f2k
    dsec resume --job night-17

    It need not be done: the next command for a paused sandbox resumes it. Done ahead, that one does not wait. Ends with
    1 when some sandboxes of a job could not be resumed.
    """

    async def work(client: DSecClient) -> int:
        bulk.check_choice("resume", sandboxes or (), job)
        if job is not None:
            return await bulk.whole_job(job, client.resume_job, "resuming", "resumed", json)
        ids = await bulk.chosen(client, sandboxes or ())
        return await bulk.each(ids, lambda name: client.sandbox(name).resume(), "resuming", json)

    execute(json, work)
