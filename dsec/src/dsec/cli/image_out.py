"""`dsec image push|export|diff|history`: images that go elsewhere, and what they are made of."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Annotated, BinaryIO

import typer

from libdsec.client import DSecClient
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.images import Change, ChangeCount

from .change_lines import change_line
from .image_progress import shown
from .image_pull import PlainHttpOption, absolute
from .options import JsonOption
from .outcome import execute
from .output import ago, amount, emit, say, table, waiting, whole
from .registry_login import login_for

RefArgument = Annotated[str, typer.Argument(metavar="NAME:TAG", help="The image.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `dsec image`."""
    for command in (push, export, diff, history):
        app.command()(command)


def push(
    ref: RefArgument,
    destination: Annotated[
        str,
        typer.Argument(metavar="DESTINATION", help="docker://HOST/NAME:TAG, oci:DIR[:TAG] or oci-archive:FILE[:TAG]."),
    ],
    plain_http: PlainHttpOption = False,
    json: JsonOption = False,
) -> None:
    """Put an image where container engines take it from. What is there already is not sent again.

    \b
    dsec image push app:v1 docker://registry.example.com/team/app:v1
    dsec image push app:v1 oci:./layout:v1
    dsec image push app:v1 oci-archive:app.tar

    Credentials are those of `docker login`, or USER:PASSWORD in DSEC_REGISTRY_AUTH.
    """

    async def work(client: DSecClient) -> None:
        place = absolute(destination)
        with shown(ref) as progress:
            done = await client.push_image(ref, place, login=login_for(place), plain_http=plain_http, progress=progress)
        if json:
            emit(done)
        else:
            say(f"{done.destination}: {done.digest}, {amount(done.bytes_sent)} were sent")

    execute(json, work)


def export(
    ref: RefArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The tar that is made; - is standard output.")],
    json: JsonOption = False,
) -> None:
    """Write an image's whole tree as a tar, as a sandbox would see it.

    \b
    dsec image export debian:12 debian.tar
    dsec image export debian:12 - | tar -t
    """

    async def work(client: DSecClient) -> None:
        target: str | BinaryIO = file
        if file == "-":
            if sys.stdout.isatty():
                raise InvalidArgumentError(
                    "cannot write a tar to a terminal: name a FILE, or send the output somewhere", field="file"
                )
            if json:
                raise InvalidArgumentError("cannot write a tar and JSON to the same place: name a FILE", field="file")
            target = sys.stdout.buffer
        with _moving(ref) as progress:
            size = await client.export_image(ref, target, progress=progress)
        if json:
            emit({"ref": ref, "file": file, "bytes": size})
        elif file != "-":
            say(f"{file}: {amount(size)}")

    execute(json, work)


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="The image before.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The image after.")],
    json: JsonOption = False,
) -> None:
    """Show what turns one image into another: A added, C changed, D removed. A time alone is no change.

    \b
    dsec image diff app:v1 app:v2
    """

    async def work(client: DSecClient) -> None:
        counts = {"added": 0, "changed": 0, "removed": 0}
        found: list[Change] = []
        async with aclosing(client.diff_images(a, b)) as changes:
            async with waiting(f"comparing {a} and {b}"):
                change = await anext(changes, None)
            while change is not None:
                counts[change.kind] += 1
                if json:
                    found.append(change)
                else:
                    say(change_line(change))
                change = await anext(changes, None)
        if json:
            emit({"changes": found, **whole(ChangeCount(**counts))})

    execute(json, work)


def history(ref: RefArgument, json: JsonOption = False) -> None:
    """Show how the layers of an image came to be, the lowest first.

    \b
    dsec image history debian:12
    """

    async def work(client: DSecClient) -> None:
        told = await client.image_history(ref)
        if json:
            emit(told)
            return
        rows = [
            (
                entry.layer.digest.removeprefix("sha256:")[:12],
                f"{ago(entry.created_at)} ago",
                amount(entry.layer.metadata_bytes + entry.layer.data_bytes),
                entry.ref,
                entry.made_by,
            )
            for entry in told.entries
        ]
        table(("LAYER", "MADE", "SIZE", "FIRST IN", "BY"), rows)

    execute(json, work)


@contextlib.contextmanager
def _moving(ref: str) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        yield lambda moved: None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{ref}: exporting") as status:
        yield lambda moved: status.update(f"{ref}: exporting ({amount(moved)})")
