"""`dsec image`: what sandboxes are made from."""

from __future__ import annotations

import os
from typing import Annotated, get_args

import typer

from dsec.environments.image import HostImage, host_image
from libdsec.client import DSecClient
from libdsec.protocol.environment import ImageConfig, ImageInfo, LayerKind, require_not_cached
from libdsec.protocol.errors import DSecError, InvalidArgumentError

from . import image_data, image_dockerfile, image_out, image_pull, image_shared
from .image_progress import shown
from .options import EnvOption, JsonOption, find_image, pairs
from .outcome import execute, report
from .output import ago, amount, emit, printable, say, table, waiting

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, no_args_is_help=True, help="Build, list, verify, remove images."
)

image_pull.register(app)
image_out.register(app)
image_shared.register(app)
image_data.register(app)

RefArgument = Annotated[str, typer.Argument(metavar="NAME:TAG", help="The image.")]


@app.command()
def build(
    ref: Annotated[
        str | None, typer.Argument(metavar="NAME:TAG", help="Its name; without it that of this machine's release.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", "--source", help="release:NAME, dir:/path or tar:/path.")
    ] = None,
    kind: Annotated[str, typer.Option(help="base, workspace or toolkit.")] = "base",
    package: Annotated[list[str] | None, typer.Option(help="Of a release: installed too; may be given again.")] = None,
    mirror: Annotated[str | None, typer.Option(help="Of a release; without it the machine's own.")] = None,
    env: EnvOption = None,
    cwd: Annotated[str, typer.Option("--cwd", "-w", help="Where commands run by default.")] = "/",
    user: Annotated[str, typer.Option("--user", "-u", help="Who runs commands by default.")] = "root",
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Do nothing when the name is taken.")] = False,
    directory: image_dockerfile.DirectoryArgument = None,
    file: image_dockerfile.FileOption = None,
    build_arg: image_dockerfile.BuildArgOption = None,
    target: image_dockerfile.TargetOption = None,
    network: image_dockerfile.NetworkOption = "private",
    no_cache: image_dockerfile.NoCacheOption = False,
    progress: image_dockerfile.ProgressOption = "plain",
    timeout: image_dockerfile.StepTimeoutOption = None,
    json: JsonOption = False,
) -> None:
    """Build an image and publish it under a name that then never changes.

    \b
    dsec image build                       this machine's own release with python3, such as debian:12
    dsec image build debian:12-py --from release:bookworm --package python3 --package git
    dsec image build repo/app:v1 --kind workspace --from dir:./app
    dsec image build alpine:3.20 --from tar:rootfs.tar.gz
    dsec image build app:1 -f Dockerfile . --build-arg VERSION=2 --network host

    With -f, or a DIRECTORY that has a Dockerfile, its steps are run in sandboxes, one after another, and each is kept.
    A RUN that fails ends it with the command's exit code.
    """
    if file is not None or directory is not None:
        others = {"--from": source, "--package": package, "--mirror": mirror, "--env": env}
        image_dockerfile.refuse({**others, "--kind": kind != "base", "--cwd": cwd != "/", "--user": user != "root"})
        wanted_file = image_dockerfile.Wanted(
            file, directory or ".", build_arg or (), target, network, not no_cache, progress, timeout, if_missing
        )
        execute(json, lambda client: image_dockerfile.main(client, ref, wanted_file, json))
    image_dockerfile.refuse(
        {
            "--build-arg": build_arg,
            "--target": target,
            "--network": network != "private",
            "--no-cache": no_cache,
            "--progress": progress != "plain",
            "--timeout": timeout,
        },
        "-f",
    )
    if kind not in get_args(LayerKind):
        raise typer.BadParameter(f"{kind!r} is none of {', '.join(get_args(LayerKind))}", param_hint="--kind")

    async def work(client: DSecClient) -> None:
        wanted = _wanted(ref, source)
        require_not_cached(wanted.ref)
        if if_missing and (existing := await find_image(client, wanted.ref)) is not None:
            if json:
                emit(existing)
            else:
                say(f"{wanted.ref} is there already")
            return
        with shown(wanted.ref) as progress:
            info = await client.build_image(
                wanted.ref,
                wanted.source,
                kind=kind,  # type: ignore[arg-type]
                packages=(*wanted.packages, *(package or ())),
                mirror=mirror,
                config=ImageConfig(pairs("--env", env), cwd, user),
                progress=progress,
            )
        if json:
            emit(info)
        else:
            say(f"{info.ref}: {_size(info)}, {sum(layer.files for layer in info.layers)} files")

    execute(json, work)


@app.command()
def ls(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only names.")] = False,
    store: Annotated[bool, typer.Option("--store", help="Those of the node's shared store.")] = False,
    json: JsonOption = False,
) -> None:
    """List images.

    \b
    dsec image ls
    dsec image ls --store
    """

    async def work(client: DSecClient) -> None:
        images = sorted(await client.images(store=store), key=lambda info: info.ref)
        if json:
            emit(images)
        elif quiet:
            for info in images:
                say(info.ref)
        else:
            rows = [(i.ref, i.kind, str(len(i.layers)), _size(i), f"{ago(i.created_at)} ago") for i in images]
            table(("IMAGE", "KIND", "LAYERS", "SIZE", "MADE"), rows)

    execute(json, work)


@app.command()
def inspect(ref: RefArgument, json: JsonOption = False) -> None:
    """Show an image's layers and defaults.

    \b
    dsec image inspect debian:12
    """

    async def work(client: DSecClient) -> None:
        info = await client.image(ref)
        if json:
            emit(info)
            return
        say(f"{info.ref} ({info.kind}), made {ago(info.created_at)} ago" + (f" from {info.parent}" * bool(info.parent)))
        say(printable(f"user {info.config.user}, directory {info.config.cwd}"))
        for name, value in sorted(info.config.env.items()):
            say(printable(f"env {name}={value}"))
        rows = [
            (layer.digest, amount(layer.metadata_bytes + layer.data_bytes), str(layer.files)) for layer in info.layers
        ]
        table(("LAYER", "SIZE", "FILES"), rows)

    execute(json, work)


@app.command()
def verify(ref: RefArgument, json: JsonOption = False) -> None:
    """Read every byte of an image's layers that is on this node and hold it against their digests.

    \b
    dsec image verify debian:12
    """

    async def work(client: DSecClient) -> None:
        async with waiting(f"reading {ref}"):
            info = await client.verify_image(ref)
        if json:
            emit(info)
            return
        stats = (await client.image_stats(ref)).layers
        present, whole = sum(each.present_bytes for each in stats), sum(each.data_bytes for each in stats)
        if present == whole:
            say(f"{info.ref}: all {len(info.layers)} layers are what their digests say")
        else:
            say(
                f"{info.ref}: what is here of its layers, {amount(present)} of {amount(whole)}, is what their digests "
                "say; `dsec image fetch` brings the rest"
            )

    execute(json, work)


@app.command()
def rm(
    refs: Annotated[list[str], typer.Argument(metavar="NAME:TAG...", help="The images.")], json: JsonOption = False
) -> None:
    """Remove images. One that a sandbox uses stays, with an error, and keeps no other from going.

    \b
    dsec image rm repo/app:v1 repo/app:v2
    """

    async def work(client: DSecClient) -> int:
        removed: list[str] = []
        failed: dict[str, DSecError] = {}
        for ref in dict.fromkeys(refs):
            try:
                await client.remove_image(ref)
            except DSecError as error:
                failed[ref] = error
                if not json:
                    report(False, error)
                continue
            removed.append(ref)
            if not json:
                say(ref)
        if json:
            emit({"removed": removed, "failed": {ref: error.body() for ref, error in failed.items()}})
        return max((error.exit_code for error in failed.values()), default=0)

    execute(json, work)


def _wanted(ref: str | None, source: str | None) -> HostImage:
    """What to build, what was not said taken from this machine's own distribution."""
    if source is None:
        own = host_image()
        return HostImage(ref or own.ref, own.source, own.packages)
    if ref is None:
        raise InvalidArgumentError("cannot build an image without a name: give NAME:TAG", field="ref")
    kind, colon, place = source.partition(":")
    if kind not in ("release", "dir", "tar") or not colon or not place:
        raise InvalidArgumentError(
            f"cannot build from {source!r}: it must be release:NAME, dir:/path or tar:/path", field="source"
        )
    return HostImage(ref, source if kind == "release" else f"{kind}:{os.path.abspath(place)}", ())


def _size(info: ImageInfo) -> str:
    return amount(sum(layer.metadata_bytes + layer.data_bytes for layer in info.layers))
