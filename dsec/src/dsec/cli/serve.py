"""`dsec serve`: the node's server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated

import typer

from libdsec.client import DSecClient
from libdsec.protocol.errors import AlreadyExistsError, DSecError, InvalidArgumentError, UnavailableError

from .options import JsonOption, seconds
from .outcome import execute_alone, report
from .output import count, emit, say, waiting

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_STOP_S = 30.0
_DRAIN_S = 30.0


DrainTimeOption = Annotated[
    float | None,
    typer.Option(parser=seconds, metavar="TIME", help="With --drain: how long calls are waited for. [default: 30s]"),
]
DurableOption = Annotated[
    bool | None,
    typer.Option(
        "--durable/--fast", help="Make the journal survive a loss of power too (DSEC_DURABLE). [default: fast]"
    ),
]


@app.command()
def serve(
    background: Annotated[bool, typer.Option("--background", help="Return as soon as it answers.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the server that runs, and its sandboxes.")] = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="End the server that runs; its sandboxes go on, and the next one has them.")
    ] = False,
    timeout: DrainTimeOption = None,
    durable: DurableOption = None,
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
    dsec serve --drain; dsec serve --background
    dsec serve --stop

    \b
    What happens to sandboxes when the server ends:
    --stop, SIGTERM, SIGINT   they are stopped
    --drain                   they go on; calls that run are waited for, then go on unheard. The next server adopts them
    kill -9, a crash          they go on; commands finish, their output is kept. The next server adopts them

    While no server runs nothing is stopped by its lifetime, and clients wait for the next one.

    Nobody needs to call it: the first command that needs a server starts one. What it reads from the environment
    besides: DSEC_AETHER, DSEC_NODE_NAME, DSEC_ID_BASE, DSEC_ID_RANGES, DSEC_DEFAULT_MEMORY_BYTES, DSEC_DEFAULT_PIDS,
    DSEC_SHM_BYTES, DSEC_MEMORY_RESERVE_BYTES, DSEC_FORK_SERVER_TIMEOUT_S, DSEC_KEPT_FINAL, DSEC_DURABLE,
    DSEC_LOG_KEEP_S, DSEC_LOG_BYTES, DSEC_STORE, DSEC_STORE_RAW, DSEC_LAYERS_LIMIT_MB, DSEC_DATA_SOURCE,
    DSEC_CACHE_LIMIT_MB (these five: docs/layers.md), DSEC_METRICS (HOST:PORT: docs/metrics.md).
    """
    for name, value in (("DSEC_STATE_DIR", state_dir), ("DSEC_RUN_DIR", run_dir), ("DSEC_LOG_FILE", log_file)):
        if value is not None:
            os.environ[name] = os.path.abspath(value)
    if durable is not None:
        os.environ["DSEC_DURABLE"] = str(durable).lower()
    if background or stop or drain or timeout is not None:
        execute_alone(json, lambda: _elsewhere(background, stop, drain, timeout, durable, json))
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


async def _elsewhere(
    background: bool, stop: bool, drain: bool, timeout: float | None, durable: bool | None, json: bool
) -> None:
    if background + stop + drain != 1:
        raise InvalidArgumentError("cannot tell what to do: give one of --background, --stop and --drain")
    if timeout is not None and not drain:
        raise InvalidArgumentError("cannot use --timeout here: it says how long --drain waits", field="timeout")
    if durable is not None:
        await _check_new(background)
    if stop:
        await _stop(json)
        return
    if drain:
        await _drain(_DRAIN_S if timeout is None else timeout, json)
        return
    os.environ.pop("DSEC_URL", None)
    async with waiting("starting the server"), DSecClient(track="cli") as client:
        info = await client.server_info()
    if json:
        emit(info)
    else:
        say(f"the server runs: pid {info.pid}, {server_url()}")


async def _check_new(background: bool) -> None:
    """How its journal is written is settled when a server starts.

    :raises InvalidArgumentError: this starts none.
    :raises AlreadyExistsError: one runs.
    """
    if not background:
        raise InvalidArgumentError(
            "cannot use --durable or --fast here: a server is told when it starts", field="durable"
        )
    try:
        async with DSecClient(server_url(), connect_timeout=5, reconnect_timeout=0, track="cli") as client:
            pid = (await client.server_info()).pid
    except UnavailableError:
        return
    raise AlreadyExistsError(
        f"cannot use --durable or --fast: the server runs already (pid {pid}); end it with `dsec serve --drain` first"
    )


async def _stop(json: bool) -> None:
    async with waiting("stopping the server"):
        pid = await _end(lambda client: client.shutdown_server(), _STOP_S)
    if json:
        emit({"stopped": pid})
    else:
        say("no server runs" if pid is None else f"the server has ended: pid {pid}")


async def _drain(timeout: float, json: bool) -> None:
    left: list[str] = []

    async def drain(client: DSecClient) -> None:
        left.extend(info.id for info in await client.list())
        await client.drain_server(timeout)

    async with waiting("draining the server"):
        pid = await _end(drain, timeout + _STOP_S)
    if json:
        emit({"drained": pid, "sandboxes": len(left)})
    elif pid is None:
        say("no server runs")
    else:
        say(f"the server has ended: pid {pid}; {count(len(left))} go on, and the next server adopts them")


async def _end(ask: Callable[[DSecClient], Awaitable[None]], timeout: float) -> int | None:
    """Ask the server that runs to end, and wait until its process has. Its pid; None when none runs."""
    url = os.environ.get("DSEC_URL") or server_url()
    try:
        async with DSecClient(url, connect_timeout=5, reconnect_timeout=0, track="cli") as client:
            pid = (await client.server_info()).pid
            process = os.pidfd_open(pid)
            try:
                await ask(client)
            except BaseException:
                os.close(process)
                raise
    except UnavailableError as error:
        if "no server listens" not in error.message:
            raise
        return None
    await _wait_until_ended(pid, process, timeout)
    return pid


async def _wait_until_ended(pid: int, process: int, timeout: float) -> None:
    """`process` is a descriptor of the process, which becomes readable at its end; it is closed here."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(process, ended.set)
    try:
        async with asyncio.timeout(timeout):
            await ended.wait()
    except TimeoutError:
        raise UnavailableError(f"cannot end the server: process {pid} still runs after {timeout:g} s") from None
    finally:
        loop.remove_reader(process)
        os.close(process)
