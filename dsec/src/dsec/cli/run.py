"""`dsec run`: a sandbox for one command."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from libdsec.client import DSecClient
from libdsec.protocol.errors import ImageNotFoundError, InvalidArgumentError
from libdsec.sandbox import Sandbox

from .exec import run_in
from .options import (
    CpusOption,
    CwdOption,
    DeadlineOption,
    DiskOption,
    EnvOption,
    HostnameOption,
    ImageOption,
    InodesOption,
    InteractiveOption,
    JsonOption,
    LabelOption,
    MemoryOption,
    NestedOption,
    OwnCommandArgument,
    OwnJobOption,
    PidsOption,
    TimeoutOption,
    ToolkitOption,
    TtlOption,
    TtyOption,
    UserOption,
    WorkspaceOption,
    container_args,
    image_or_only,
)
from .outcome import execute, warn
from .output import waiting

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_ORPHAN_S = 60.0
"""When this command is killed, its sandbox is one that nobody uses, and goes by itself."""


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    context: typer.Context,
    command: OwnCommandArgument = None,
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
    timeout: TimeoutOption = None,
    interactive: InteractiveOption = False,
    tty: TtyOption = False,
    rm: Annotated[bool, typer.Option("--rm/--keep", help="Stop the sandbox afterwards, or keep it.")] = True,
    json: JsonOption = False,
) -> None:
    """Run a command in a new sandbox, and end with its exit code.

    Without a command what the image says is run: its entrypoint and command, of the workspace's image where that has
    any. A command is run alone, without the image's entrypoint.

    \b
    dsec run -- uname -a
    dsec run --image debian:12 --memory 512m --cpus 1 -- python3 -c 'print(1)'
    dsec run -it -- bash
    tar c src | dsec run -i --timeout 5m -- sh -c 'tar x && make test'

    A signal n ends it with 128 + n, --timeout with 124. With --json the output is collected, and cut where it is long.
    """

    async def work(client: DSecClient) -> int:
        ttl_s = ttl if ttl is not None or not rm else _ORPHAN_S
        base = await image_or_only(client, image)
        try:
            words = command or await _own_command(client, base, workspace)
        except ImageNotFoundError:
            words = []  # one that only the shared store has comes with the sandbox
        args = container_args(base, {**context.params, "ttl": ttl_s})
        async with waiting("creating the sandbox"):
            sandbox = await client.run_container(args)
        async with sandbox if rm else _kept(sandbox, json):
            words = words or await _own_command(client, base, workspace)
            return await run_in(sandbox, words, interactive, tty, json, {"timeout": timeout})

    execute(json, work)


async def _own_command(client: DSecClient, base: str, workspace: str | None) -> list[str]:
    """What the images say is to be run.

    :raises InvalidArgumentError: nothing.
    :raises ImageNotFoundError: one of them is not on the node.
    """
    for ref in (workspace, base):
        if ref is not None:
            config = (await client.image(ref)).config
            if words := [*config.entrypoint, *config.cmd]:
                return words
    raise InvalidArgumentError(f"cannot run {base} without a command: the image has none of its own", field="command")


@contextlib.asynccontextmanager
async def _kept(sandbox: Sandbox, json: bool) -> AsyncIterator[None]:
    """Says in the end, whatever came of the command, that the sandbox stays."""
    try:
        yield
    finally:
        if not json:
            warn(f"the sandbox stays: {sandbox.id}")
