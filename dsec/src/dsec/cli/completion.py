"""`dsec completion`: for the shell's own start-up file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from .output import say

app = typer.Typer(add_completion=False, rich_markup_mode=None)


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
