"""`dsec create`: a sandbox that stays."""

from __future__ import annotations

from typing import Annotated

import typer

from libdsec.client import DSecClient

from .options import (
    CpusOption,
    CwdOption,
    DeadlineOption,
    DiskOption,
    EnvOption,
    HostnameOption,
    ImageOption,
    InodesOption,
    JsonOption,
    LabelOption,
    MemoryOption,
    NestedOption,
    OwnJobOption,
    PidsOption,
    ToolkitOption,
    TtlOption,
    UserOption,
    WorkspaceOption,
    container_args,
    image_or_only,
    seconds,
)
from .outcome import execute
from .output import emit, say, waiting

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_TIMEOUT_S = 60.0


@app.command()
def create(
    context: typer.Context,
    image: ImageOption = None,
    workspace: WorkspaceOption = None,
    toolkit: ToolkitOption = None,
    memory: MemoryOption = None,
    cpus: CpusOption = None,
    pids: PidsOption = None,
    disk: DiskOption = None,
    disk_inodes: InodesOption = None,
    env: EnvOption = None,
    user: UserOption = None,
    cwd: CwdOption = None,
    hostname: HostnameOption = None,
    label: LabelOption = None,
    job: OwnJobOption = None,
    ttl: TtlOption = None,
    deadline: DeadlineOption = None,
    nested_user_namespaces: NestedOption = False,
    timeout: Annotated[
        float | None, typer.Option(parser=seconds, metavar="TIME", help="Give up after so long. [default: 60s]")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Create a sandbox and print its id.

    \b
    dsec create
    dsec create --image debian:12 --memory 2g --cpus 2 --ttl 10m
    dsec create --workspace repo/sphinx-9658:v1 --toolkit harness:v7 --label task=9658
    dsec create --job night-17

    Without --ttl or --deadline it stays until `dsec stop`.
    """

    async def work(client: DSecClient) -> None:
        args = container_args(await image_or_only(client, image), context.params)
        async with waiting("creating the sandbox"):
            sandbox = await client.run_container(args, timeout=timeout or _TIMEOUT_S)
        if json:
            emit(await sandbox.info())
        else:
            say(sandbox.id)

    execute(json, work)
