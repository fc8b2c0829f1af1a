"""`dsec exec`: a command in a sandbox that is there already."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from libdsec.client import DSecClient
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.sandbox import Sandbox

from . import terminal
from .attach import attach
from .options import (
    CommandArgument,
    CwdOption,
    EnvOption,
    InteractiveOption,
    JsonOption,
    SandboxArgument,
    TimeoutOption,
    TtyOption,
    UserOption,
    find_sandbox,
    pairs,
)
from .outcome import execute, exit_status, explain
from .output import emit

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_STDIN_LIMIT = 64 * 1024 * 1024


@app.command(context_settings={"allow_interspersed_args": False})
def exec_(
    sandbox: SandboxArgument,
    command: CommandArgument,
    interactive: InteractiveOption = False,
    tty: TtyOption = False,
    env: EnvOption = None,
    user: UserOption = None,
    cwd: CwdOption = None,
    timeout: TimeoutOption = None,
    json: JsonOption = False,
) -> None:
    """Run a command in a sandbox, and end with its exit code.

    \b
    dsec exec 3f2k -- pytest -q
    dsec exec -it 3f2k -- python3
    echo hello | dsec exec -i 3f2k -- cat
    dsec exec --timeout 30s --json 3f2k -- make test

    A signal n ends it with 128 + n, --timeout with 124. With --json the output is collected, and cut where it is long.
    """

    async def work(client: DSecClient) -> int:
        found = await find_sandbox(client, sandbox)
        options = {"env": pairs("--env", env), "user": user, "cwd": cwd, "timeout": timeout}
        return await run_in(found, command, interactive, tty, json, options)

    execute(json, work)


def _all_of_stdin() -> bytes:
    data = sys.stdin.buffer.read(_STDIN_LIMIT + 1)
    if len(data) > _STDIN_LIMIT:
        raise InvalidArgumentError(
            f"cannot pass more than {_STDIN_LIMIT} bytes of standard input with --json: leave --json out"
        )
    return data


async def run_in(
    sandbox: Sandbox, command: Sequence[str], interactive: bool, tty: bool, json: bool, options: dict[str, Any]
) -> int:
    """Run a command as the options say; the exit code for the shell."""
    if json:
        if tty:
            raise InvalidArgumentError("cannot give the command a terminal with --json: leave one of them out")
        result = await sandbox.run(command, stdin=_all_of_stdin() if interactive else None, **options)
        emit(
            {
                "sandbox": sandbox.id,
                "ended": result.ended,
                "exit_code": result.exit_code,
                "signal": result.signal,
                "stdout": result.stdout,
                "stderr": result.stderr,
                "stdout_bytes": result.stdout_total,
                "stderr_bytes": result.stderr_total,
                "truncated": result.truncated,
                "duration_s": result.duration_s,
                "oom_kills": result.oom_kills,
                "pids_refused": result.pids_refused,
            }
        )
        return exit_status(result)
    if tty:
        terminal.check()
        rows, cols = terminal.size()
        async with await sandbox.exec_stream(command, pty=True, rows=rows, cols=cols, **options) as process:
            result = await terminal.attach_terminal(process)
    else:
        async with await sandbox.exec_stream(command, stdin=interactive, **options) as process:
            result = await attach(process, stdin=interactive)
    explain(result)
    return exit_status(result)
