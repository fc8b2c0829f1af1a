"""`dsec serve`: the node's server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Annotated

import typer

from libdsec.client import DSecClient
from libdsec.protocol.errors import DSecError, InvalidArgumentError, UnavailableError

from .options import JsonOption
from .outcome import execute_alone, report
from .output import emit, say, waiting

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_STOP_S = 30.0


@app.command()
def serve(
    background: Annotated[bool, typer.Option("--background", help="Return as soon as it answers.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the server that runs.")] = False,
    state_dir: Annotated[
        str | None, typer.Option(envvar="DSEC_STATE_DIR", help="Images, layers and what sandboxes write.")
    ] = None,
    run_dir: Annotated[str | None, typer.Option(envvar="DSEC_RUN_DIR", help="Sockets and the server's log.")] = None,
    log_file: Annotated[str | None, typer.Option(envvar="DSEC_LOG_FILE", help="Instead of standard error.")] = None,
    json: JsonOption = False,
) -> None:
    """Run the node's server here, until SIGTERM or SIGINT. Needs root.

    \b
    dsec serve
    dsec serve --background
    dsec serve --stop

    Nobody needs to call it: the first command that needs a server starts one. What it reads from the environment
    besides: DSEC_AETHER, DSEC_NODE_NAME, DSEC_ID_BASE, DSEC_ID_RANGES, DSEC_DEFAULT_MEMORY_BYTES, DSEC_DEFAULT_PIDS,
    DSEC_SHM_BYTES, DSEC_MEMORY_RESERVE_BYTES, DSEC_FORK_SERVER_TIMEOUT_S, DSEC_KEPT_FINAL.
    """
    for name, value in (("DSEC_STATE_DIR", state_dir), ("DSEC_RUN_DIR", run_dir), ("DSEC_LOG_FILE", log_file)):
        if value is not None:
            os.environ[name] = os.path.abspath(value)
    if background or stop:
        execute_alone(json, lambda: _elsewhere(background, stop, json))
    _here(json)


def server_url() -> str:
    """Of the local node's server, whether or not it runs."""
    return f"unix://{os.environ.get('DSEC_RUN_DIR') or '/run/dsec'}/api.sock"


def _here(json: bool) -> None:
    from dsec.config import load
    from dsec.serve import main

    failures: list[DSecError] = []
    try:
        main(load())
    except* DSecError as group:  # its rooms run in a task group
        failures = [error for error in _leaves(group) if isinstance(error, DSecError)]
    if failures:
        raise typer.Exit(report(json, failures[0]))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


async def _elsewhere(background: bool, stop: bool, json: bool) -> None:
    if background and stop:
        raise InvalidArgumentError("cannot both start and stop: give --background or --stop")
    if stop:
        await _stop(json)
        return
    os.environ.pop("DSEC_URL", None)
    async with waiting("starting the server"), DSecClient() as client:
        info = await client.server_info()
    if json:
        emit(info)
    else:
        say(f"the server runs: pid {info.pid}, {server_url()}")


async def _stop(json: bool) -> None:
    url = os.environ.get("DSEC_URL") or server_url()
    async with waiting("stopping the server"):
        try:
            async with DSecClient(url, connect_timeout=5) as client:
                pid = (await client.server_info()).pid
                process = os.pidfd_open(pid)
                await client.shutdown_server()
        except UnavailableError as error:
            if "no server listens" not in error.message:
                raise
            pid = None
        if pid is not None:
            await _wait_until_ended(pid, process)
    if json:
        emit({"stopped": pid})
    else:
        say("no server runs" if pid is None else f"the server has ended: pid {pid}")


async def _wait_until_ended(pid: int, process: int) -> None:
    """`process` is a descriptor of the process, which becomes readable at its end; it is closed here."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(process, ended.set)
    try:
        async with asyncio.timeout(_STOP_S):
            await ended.wait()
    except TimeoutError:
        raise UnavailableError(f"cannot end the server: process {pid} still runs after {_STOP_S:g} s") from None
    finally:
        loop.remove_reader(process)
        os.close(process)
