"""From a command's coroutine to an exit code: opens the client, and says errors in one line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

import typer

from libdsec.client import DSecClient
from libdsec.protocol.errors import DSecError
from libdsec.protocol.exec import ExecResult

from .output import emit

_REMEDIES = {
    "image_not_found": "see `dsec image ls`, or make one with `dsec image build`",
    "sandbox_not_found": "see `dsec ls --all`",
    "sandbox_state": "see `dsec inspect`",
    "capacity": "stop sandboxes (`dsec ls`), or ask for less",
    "admission_rejected": "stop sandboxes (`dsec ls`), or ask for less",
    "unauthenticated": "check DSEC_URL and your credentials",
    "internal": "see the server's log; please report it",
}


def execute(json: bool, work: Callable[[DSecClient], Awaitable[int | None]]) -> NoReturn:
    """Run `work` with an open client and exit with its number (None is 0)."""

    async def main() -> int | None:
        async with DSecClient() as client:
            return await work(client)

    execute_alone(json, main)


def execute_alone(json: bool, work: Callable[[], Awaitable[int | None]]) -> NoReturn:
    """As `execute`, for what needs no server."""

    async def main() -> int | None:
        return await work()

    try:
        code = asyncio.run(main())
    except DSecError as error:
        code = report(json, error)
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code or 0)


def report(json: bool, error: DSecError) -> int:
    """Tell an error; its exit code."""
    if json:
        emit({"error": error.body()})
        return error.exit_code
    message = error.message if error.message.startswith("cannot ") else f"cannot go on: {error.message}"
    remedy = error.details.get("remedy") or _REMEDIES.get(error.code)
    sys.stderr.write(f"dsec: {message}\n")
    if remedy:
        sys.stderr.write(f"      {remedy}\n")
    return error.exit_code


def warn(message: str) -> None:
    sys.stderr.write(f"dsec: {message}\n")


def exit_status(result: ExecResult) -> int:
    """What a shell would say of how a command ended."""
    if result.ended == "exited":
        return result.exit_code or 0
    if result.ended == "signaled":
        return 128 + (result.signal or 0)
    return 124 if result.ended == "timed_out" else 130


def explain(result: ExecResult) -> None:
    """Tell what an exit code alone does not."""
    if result.out_of_memory:
        warn(f"the sandbox's memory limit was reached; the kernel killed {result.oom_kills} of the command's processes")
    if result.pids_refused:
        warn(f"the sandbox's limit of processes was reached; {result.pids_refused} could not be started")
    if result.timed_out:
        warn(f"the command was killed after {result.duration_s:.1f} s: its time was over")
