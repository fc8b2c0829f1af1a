"""From a command's coroutine to an exit code: opens the client, and says errors in one line."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

import typer

from libdsec.client import DSecClient
from libdsec.protocol.errors import DSecError
from libdsec.protocol.exec import ExecResult

from .output import emit, printable

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
        async with DSecClient(track="cli") as client:
            return await work(client)

    execute_alone(json, main)


def execute_alone(json: bool, work: Callable[[], Awaitable[int | None]]) -> NoReturn:
    """As `execute`, for what needs no server."""

    ended_by: list[int] = []

    async def main() -> int | None:
        _cancel_on_signals(ended_by)
        return await work()

    try:
        try:
            code = asyncio.run(main())
        except DSecError as error:
            code = report(json, error)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except asyncio.CancelledError:
        if not ended_by:
            raise
        code = 128 + ended_by[0]
    except BrokenPipeError:
        # whoever read our output has gone: as if SIGPIPE had ended us
        code = _without_output(141)
    except OSError as error:
        warn(f"cannot go on: {error}")
        code = _without_output(74)
    raise typer.Exit(code or 0)


def _cancel_on_signals(received: list[int]) -> None:
    """SIGTERM and SIGHUP end the work as SIGINT does: what it has begun is cleaned up first. Ignored ones stay so."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    def cancel(number: int) -> None:
        received.append(number)
        if task is not None:
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            loop.add_signal_handler(number, cancel, number)


def _without_output(code: int) -> int:
    """What is still in the buffer goes nowhere: a second failure at exit would say no more than the first."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return code


def report(json: bool, error: DSecError) -> int:
    """Tell an error; its exit code."""
    if json:
        emit({"error": error.body()})
        return error.exit_code
    message = error.message if error.message.startswith("cannot ") else f"cannot go on: {error.message}"
    remedy = error.details.get("remedy") or _REMEDIES.get(error.code)
    warn(message)
    if remedy:
        sys.stderr.write(f"      {remedy}\n")
    return error.exit_code


def warn(message: str) -> None:
    """A line on standard error; further ones are set off, since a name from a sandbox or a tar may have made them."""
    first, *further = (printable(line) for line in message.split("\n"))
    sys.stderr.write("\n      ".join((f"dsec: {first}", *further)) + "\n")


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
