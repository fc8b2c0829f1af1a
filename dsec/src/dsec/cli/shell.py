"""`dsec shell`: a terminal in a sandbox."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from libdsec.client import DSecClient

from .exec import run_in
from .options import CwdOption, EnvOption, SandboxArgument, UserOption, find_sandbox, pairs
from .outcome import execute

app = typer.Typer(add_completion=False, rich_markup_mode=None)

# the image's better shell where it has one, its /bin/sh where not
_DEFAULT = ("/bin/sh", "-c", "if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh -l; fi")


@app.command()
def shell(
    sandbox: SandboxArgument,
    shell: Annotated[str | None, typer.Option(help="Another shell than the image's own.")] = None,
    env: EnvOption = None,
    user: UserOption = None,
    cwd: CwdOption = None,
) -> None:
    """Open a terminal in a sandbox, and end with the exit code of its shell.

    \b
    dsec shell 3f2k
    dsec shell 3f2k --user nobody --cwd /tmp
    """

    async def work(client: DSecClient) -> int:
        found = await find_sandbox(client, sandbox)
        variables = {"TERM": os.environ.get("TERM", "xterm"), **pairs("--env", env)}
        options = {"env": variables, "user": user, "cwd": cwd}
        return await run_in(found, (shell,) if shell else _DEFAULT, True, True, False, options)

    execute(False, work)
