"""`dsec version`: what runs here."""

from __future__ import annotations

import os
from importlib.metadata import version as installed

import typer

from libdsec.protocol.errors import DSecError
from libdsec.protocol.frames import GENERATION

from .options import JsonOption
from .outcome import execute_alone
from .output import emit, say

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def version(json: JsonOption = False) -> None:
    """Show the versions of this command and, if one runs, of the server. Starts none.

    \b
    dsec version
    dsec version --json
    """

    async def work() -> None:
        server = await _server_version()
        if json:
            emit(
                {"dsec": installed("dsec"), "libdsec": installed("libdsec"), "generation": GENERATION, "server": server}
            )
            return
        say(f"dsec {installed('dsec')} (libdsec {installed('libdsec')}, wire generation {GENERATION})")
        say(f"server {server}" if server else "no server runs")

    execute_alone(json, work)


async def _server_version() -> str | None:
    from libdsec.client import DSecClient

    from .serve import server_url

    try:
        async with DSecClient(os.environ.get("DSEC_URL") or server_url(), connect_timeout=5, track="cli") as client:
            return (await client.server_info()).version
    except DSecError:
        return None  # that none runs is an answer here
