"""The names of all commands, and the door to each."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("dsec.cli.run", "Run a command in a new sandbox, which is gone afterwards."),
    "create": ("dsec.cli.create", "Create a sandbox and print its id."),
    "exec": ("dsec.cli.exec", "Run a command in a sandbox."),
    "shell": ("dsec.cli.shell", "Open a terminal in a sandbox."),
    "ls": ("dsec.cli.ls", "List sandboxes."),
    "inspect": ("dsec.cli.inspect", "Show all there is to know about a sandbox."),
    "logs": ("dsec.cli.logs", "Show what happened to a sandbox."),
    "log": ("dsec.cli.log", "Show the command log of a sandbox or rollout, step by step."),
    "replay": ("dsec.cli.replay", "Run a command log again in fresh sandboxes, and compare."),
    "cp": ("dsec.cli.cp", "Copy files and directories into or out of a sandbox."),
    "pause": ("dsec.cli.pause", "Freeze sandboxes and give back their memory."),
    "resume": ("dsec.cli.resume", "Let paused sandboxes go on."),
    "diff": ("dsec.cli.diff", "Show what a sandbox changed of its image."),
    "pack": ("dsec.cli.pack", "Make an image of what was written in a sandbox."),
    "stop": ("dsec.cli.stop", "Stop sandboxes for good."),
    "job": ("dsec.cli.job", "List and show jobs."),
    "image": ("dsec.cli.image", "Build, list, show and remove images."),
    "rollout": ("dsec.cli.rollout", "Run agents over many tasks, each in a sandbox, and show the reports."),
    "bench": ("dsec.cli.bench", "Measure this machine: the floor, the peers and DSec, side by side."),
    "node": ("dsec.cli.node", "Set up the machine's swap, for pausing, and show it."),
    "doctor": ("dsec.cli.doctor", "Try what this machine can do, and say what to do where it cannot."),
    "serve": ("dsec.cli.serve", "Run the node's server, or end it."),
    "completion": ("dsec.cli.completion", "Print a shell's completion script."),
    "version": ("dsec.cli.version", "Show the versions of the command and of the server."),
}


class LazyGroup(TyperGroup):
    """Commands that are imported when they are called, not when they are listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(_COMMANDS[cmd_name][0]).app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def dsec(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(envvar="DSEC_URL", help="The server, as unix:///path/api.sock; without it the local node's."),
    ] = None,
) -> None:
    """Sandboxes for AI agents: isolated, stateful, thousands on a machine.

    \b
    dsec image build                                  make a base image of this machine's own distribution
    dsec run -- python3 -c 'print(1)'                 run a command in a new sandbox
    id=$(dsec create); dsec exec $id -- uname -a      make a sandbox and work in it
    dsec shell $id                                    a terminal in it

    The server starts by itself when it is needed. Sandboxes may be named by a unique beginning of their ids,
    with or without the first eight characters, which name the node.
    Every command that ends in an answer takes --json.
    """
    if url is not None:
        os.environ["DSEC_URL"] = url


def main() -> None:
    """The entry point."""
    _open_standard_streams()
    app(prog_name="dsec")


def _open_standard_streams() -> None:
    """Those we were started without lead nowhere: else the next file opened, a socket too, would be taken for one."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            setattr(sys, name, os.fdopen(descriptor, mode))
