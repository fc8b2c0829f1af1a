"""`dsec image fetch|stats`: data of images that lie in the shared store."""

from __future__ import annotations

from typing import Annotated

import typer

from libdsec.client import DSecClient

from .image_progress import shown
from .options import JsonOption
from .outcome import execute
from .output import ago, amount, emit, say, table

RefsArgument = Annotated[list[str], typer.Argument(metavar="NAME:TAG...", help="The images.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `dsec image`."""
    for command in (fetch, stats):
        app.command()(command)


def fetch(refs: RefsArgument, json: JsonOption = False) -> None:
    """Have all data of images on the node, of which sandboxes otherwise fetch what they read.

    \b
    dsec image fetch debian:12
    """

    async def work(client: DSecClient) -> None:
        infos = []
        for ref in refs:
            with shown(ref) as progress:
                infos.append(await client.fetch_image(ref, progress=progress))
            if not json:
                say(f"{ref}: {amount(sum(layer.data_bytes for layer in infos[-1].layers))} are here")
        if json:
            emit(infos)

    execute(json, work)


def stats(
    ref: Annotated[str, typer.Argument(metavar="[NAME:TAG]", help="Of this image; without it of all layers.")] = "",
    json: JsonOption = False,
) -> None:
    """How much of each layer is on the node, and what reading it on demand cost.

    \b
    dsec image stats
    dsec image stats debian:12 --json
    """

    async def work(client: DSecClient) -> None:
        answer = await client.image_stats(ref)
        if json:
            emit(answer)
            return
        rows = [
            (
                layer.layer.removeprefix("sha256:")[:12],
                layer.source,
                f"{amount(layer.present_bytes)} of {amount(layer.data_bytes)}",
                amount(layer.fetched_bytes),
                f"{layer.reads_waited}",
                f"{layer.wait_p50_ms:.1f} / {layer.wait_p99_ms:.1f} ms",
                f"{layer.errors}",
                f"{layer.in_use}",
                ago(layer.last_used_at) if layer.last_used_at else "never",
                ", ".join(layer.refs),
            )
            for layer in answer.layers
        ]
        heads = ("LAYER", "SOURCE", "HERE", "FETCHED", "WAITED", "P50 / P99", "ERRORS", "SANDBOXES", "USED", "IMAGES")
        table(heads, rows)
        limit = f" of {amount(answer.cache_limit)}" if answer.cache_limit else ""
        say(f"{amount(answer.cache_bytes)}{limit} of the node's disk hold data that the shared store has")

    execute(json, work)
