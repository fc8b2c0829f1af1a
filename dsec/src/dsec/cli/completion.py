"""`dsec completion`: for the shell's own start-up file; and what the shell asks for while somebody types."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from .output import say

if TYPE_CHECKING:
    from libdsec.client import DSecClient

app = typer.Typer(add_completion=False, rich_markup_mode=None)


_PATIENCE_S = 1.0
_SHOWN = 200


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="For which shell.")]) -> None:
    """Print a shell's completion script.

    \b
    dsec completion bash > /etc/bash_completion.d/dsec
    dsec completion zsh > "${fpath[1]}/_dsec"
    dsec completion fish > ~/.config/fish/completions/dsec.fish
    """
    say(get_completion_script(prog_name="dsec", complete_var="_DSEC_COMPLETE", shell=shell.value))


def sandboxes(incomplete: str) -> list[str]:
    """Ids of sandboxes that begin so."""
    return _found(_sandboxes, incomplete)


def jobs(incomplete: str) -> list[str]:
    """Names of jobs that begin so."""
    return _found(_jobs, incomplete)


def scopes(incomplete: str) -> list[str]:
    """Ids of sandboxes and names of rollouts that begin so."""

    async def both(client: DSecClient) -> list[str]:
        return [*await _sandboxes(client), *(rollout.name for rollout in await client.rollouts())]

    return _found(both, incomplete)


async def _sandboxes(client: DSecClient) -> list[str]:
    return [info.id for info in await client.list()]


async def _jobs(client: DSecClient) -> list[str]:
    return [info.job for info in await client.jobs()]


def _found(ask: Callable[[DSecClient], Awaitable[Iterable[str]]], incomplete: str) -> list[str]:
    """What the running server knows. Where none runs, or it does not answer at once, nothing: whoever pressed the key
    is typing a command, and must neither start a server nor be told of errors."""
    from libdsec.client import DSecClient
    from libdsec.protocol.errors import DSecError

    from .serve import server_url

    async def main() -> Iterable[str]:
        url = os.environ.get("DSEC_URL") or server_url()
        async with (
            asyncio.timeout(_PATIENCE_S),
            DSecClient(url, connect_timeout=_PATIENCE_S, reconnect_timeout=0, track="cli") as client,
        ):
            return await ask(client)

    try:
        names = asyncio.run(main())
    except (DSecError, OSError, TimeoutError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))[:_SHOWN]
