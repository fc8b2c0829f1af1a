"""`dsec image pull`: images of registries, layouts and archives."""

from __future__ import annotations

import os
from typing import Annotated, get_args

import typer

from libdsec.client import DSecClient
from libdsec.protocol.environment import ImageInfo, LayerKind
from libdsec.protocol.images import MERGE_BYTES

from .image_progress import shown
from .options import JsonOption, mebibytes
from .outcome import execute
from .output import amount, emit, say
from .registry_login import login_for

_FILES = ("oci", "oci-archive", "docker-archive")
_MIB = 1024 * 1024


def register(app: typer.Typer) -> None:
    """Add the command to `dsec image`."""
    app.command()(pull)


def _size(text: str) -> int:
    return 0 if text.strip() == "0" else round(mebibytes(text) * _MIB)


PlainHttpOption = Annotated[
    bool, typer.Option("--plain-http", help="Talk to the registry without TLS; only on this machine itself.")
]


def pull(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="docker://HOST/NAME:TAG, oci:DIR[:TAG], oci-archive:FILE or docker-archive:FILE."
        ),
    ],
    name: Annotated[
        str, typer.Option("--as", metavar="NAME:TAG", help="What it is called here; without it as in the source.")
    ] = "",
    kind: Annotated[str, typer.Option(help="base, workspace or toolkit.")] = "base",
    plain_http: PlainHttpOption = False,
    merge: Annotated[
        int | None,
        typer.Option(parser=_size, metavar="SIZE", help="Merge layers up to so much: 3g. 0 merges none."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Pull an image of containers, and publish it under a name that then never changes.

    \b
    dsec image pull docker://debian:12
    dsec image pull docker://registry.example.com/team/app:v1 --as app:v1
    dsec image pull docker-archive:saved.tar

    Credentials are those of `docker login`, or USER:PASSWORD in DSEC_REGISTRY_AUTH.
    """
    if kind not in get_args(LayerKind):
        raise typer.BadParameter(f"{kind!r} is none of {', '.join(get_args(LayerKind))}", param_hint="--kind")

    async def work(client: DSecClient) -> None:
        place = absolute(source)
        with shown(name or source) as progress:
            info = await client.pull_image(
                place,
                name,
                kind=kind,  # type: ignore[arg-type]
                login=login_for(place),
                plain_http=plain_http,
                merge_bytes=MERGE_BYTES if merge is None else merge,
                progress=progress,
            )
        if json:
            emit(info)
        else:
            say(_summary(info))

    execute(json, work)


def _summary(info: ImageInfo) -> str:
    size = sum(layer.metadata_bytes + layer.data_bytes for layer in info.layers)
    files = sum(layer.files for layer in info.layers)
    layers = f"{len(info.layers)} layer{'s' * (len(info.layers) != 1)}"
    return f"{info.ref}: {layers}, {amount(size)}, {files} files"


def absolute(place: str) -> str:
    """A place with its path as the node understands it."""
    scheme, colon, rest = place.partition(":")
    if scheme not in _FILES or not colon or not rest:
        return place
    path, colon, tag = rest.partition(":")
    return f"{scheme}:{os.path.abspath(path)}{colon}{tag}"
