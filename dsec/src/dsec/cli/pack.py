"""`dsec pack`: a sandbox that becomes an image."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from libdsec.client import DSecClient
from libdsec.protocol.environment import LayerKind, require_not_cached
from libdsec.protocol.images import PackedDiff, ScrubRule

from .image_progress import shown
from .options import JsonOption, SandboxArgument, find_sandbox
from .outcome import execute, warn
from .output import amount, emit, say, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_SHOWN = 20
"""Rows of what was left out."""

RefArgument = Annotated[str, typer.Argument(metavar="NAME:TAG", help="What the image is called.")]


@app.command()
def pack(
    sandbox: SandboxArgument,
    ref: RefArgument,
    kind: Annotated[str, typer.Option(help="workspace, toolkit or base.")] = "workspace",
    no_scrub: Annotated[bool, typer.Option("--no-scrub", help="Leave nothing out of itself.")] = False,
    scrub: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Leave this out too; may be given again.")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Keep this all the same; may be given again.")
    ] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Put it into the shared store too.")] = False,
    comment: Annotated[str, typer.Option("--comment", "-m", help="What the image's history says of it.")] = "",
    json: JsonOption = False,
) -> None:
    """Make an image of what was written in a sandbox.

    \b
    dsec pack 3f2k repo/app:v2
    dsec pack 3f2k repo/app:v2 --scrub 'srv/**/build' --keep tmp/fixtures
    dsec pack 3f2k tools/go:1 --kind toolkit

    The sandbox stands still while that is read, and goes on. Caches, histories, logs and keys are left out, and listed;
    patterns are of whole paths, `*` within a name, `**` for any number of directories.
    """
    if kind not in get_args(LayerKind):
        raise typer.BadParameter(f"{kind!r} is none of {', '.join(get_args(LayerKind))}", param_hint="--kind")
    rules = [ScrubRule(pattern.strip("/"), "asked for") for pattern in scrub or ()]
    rules += [ScrubRule(pattern.strip("/"), keep=True) for pattern in keep or ()]

    async def work(client: DSecClient) -> None:
        require_not_cached(ref)
        found = await find_sandbox(client, sandbox)
        with shown(ref) as progress:
            packed = await found.pack_diff(
                ref,
                kind,  # type: ignore[arg-type]
                scrub=not no_scrub,
                rules=rules,
                publish=publish,
                comment=comment,
                progress=progress,
            )
        if json:
            emit(packed)
        else:
            _show(packed)

    execute(json, work)


def _show(packed: PackedDiff) -> None:
    layer = packed.layer
    size = amount(layer.metadata_bytes + layer.data_bytes)
    still = f", the sandbox stood still for {packed.frozen_ms:.0f} ms" if packed.frozen_ms else ""
    say(f"{packed.image.ref} ({packed.image.kind}): {layer.files} files, {size}{still}")
    if packed.scrubbed_files:
        say(f"left out: {packed.scrubbed_files} entries, {amount(packed.scrubbed_bytes)}")
        rows = [(row.path, str(row.files), amount(row.bytes), row.why) for row in packed.scrubbed[:_SHOWN]]
        table(("PATH", "ENTRIES", "SIZE", "WHY"), rows)
        if len(packed.scrubbed) > _SHOWN:
            say("... (all of them with --json)")
    if packed.in_toolkits:
        some = ", ".join(packed.in_toolkits[:3]) + (", ..." if len(packed.in_toolkits) > 3 else "")
        warn(f"{some}: a toolkit has the same and lies above a {packed.image.kind}, so that its own will be seen")
