"""`dsec image publish|pin|unpin|gc`: the shared store, and what the node keeps of it."""

from __future__ import annotations

from typing import Annotated

import typer

from libdsec.client import DSecClient

from .image_progress import shown
from .options import JsonOption, mebibytes
from .outcome import execute
from .output import amount, emit, say, table, waiting

RefArgument = Annotated[str, typer.Argument(metavar="NAME:TAG", help="The image.")]
RefsArgument = Annotated[list[str], typer.Argument(metavar="NAME:TAG...", help="The images.")]
_MIB = 1024 * 1024


def register(app: typer.Typer) -> None:
    """Add the commands to `dsec image`."""
    for command in (publish, pin, unpin, gc):
        app.command()(command)


def publish(ref: RefArgument, json: JsonOption = False) -> None:
    """Put an image into the node's shared store, where other nodes find it by its name.

    \b
    dsec image publish debian:12
    """

    async def work(client: DSecClient) -> None:
        with shown(ref) as progress:
            done = await client.publish_image(ref, progress=progress)
        if json:
            emit(done)
        else:
            sent = f"{done.chunks_new} of {done.chunks} chunks, {amount(done.bytes_sent)}"
            say(f"{ref} is in {done.store}; {sent} were sent")

    execute(json, work)


def pin(refs: RefsArgument, json: JsonOption = False) -> None:
    """Keep images on the node, whatever is collected there.

    \b
    dsec image pin debian:12
    """
    _pin(refs, json, pinned=True)


def unpin(refs: RefsArgument, json: JsonOption = False) -> None:
    """Let images be collected again.

    \b
    dsec image unpin debian:12
    """
    _pin(refs, json, pinned=False)


def _pin(refs: list[str], json: bool, *, pinned: bool) -> None:
    async def work(client: DSecClient) -> None:
        for ref in refs:
            await client.pin_image(ref, pinned=pinned)
            if not json:
                say(ref)
        if json:
            emit({"pinned" if pinned else "unpinned": refs})

    execute(json, work)


def gc(
    keep: Annotated[
        float | None, typer.Option("--keep", parser=mebibytes, metavar="SIZE", help="What the layers may take: 20g.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: JsonOption = False,
) -> None:
    """Forget images that the shared store has, the longest unused first. They come again when they are asked for.

    What a sandbox uses or was to use within the last half minute, what is pinned, and what only this node has stays.

    \b
    dsec image gc --dry-run
    dsec image gc --keep 20g
    """

    async def work(client: DSecClient) -> None:
        async with waiting("looking at layers"):
            done = await client.collect_images(keep_bytes=int((keep or 0) * _MIB), dry_run=dry_run)
        if json:
            emit(done)
            return
        rows = [
            (each.layer.removeprefix("sha256:")[:12], amount(each.bytes), ", ".join(each.refs), each.why)
            for each in done.collected
        ]
        if rows:
            table(("LAYER", "SIZE", "IMAGES", "WHY"), rows)
        verb = "would be freed" if dry_run else "freed"
        say(f"{amount(done.bytes)} {verb}, {amount(done.kept_bytes)} kept")

    execute(json, work)
