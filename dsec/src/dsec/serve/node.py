"""Wires the rooms and runs them until they are asked to end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any

import structlog
import uvloop

from dsec.apiserver import Service, serve
from dsec.bus import LocalBus, as_dsec_error
from dsec.config import NodeConfig, find_aether
from dsec.drivers.container.driver import ContainerConfig, ContainerDriver
from dsec.edge import Edge
from dsec.edge.clock import SystemClock
from dsec.edge.identity import Identity, load_identity
from dsec.edge.images import StoreImages
from dsec.iam import Authority, Peer, Principal, no_quota
from dsec.linux.cgroups import CgroupPool, Hierarchies
from dsec.placement import Placement
from dsec.store.local import LocalStore
from dsec.store.mounts import LayerMounts
from libdsec.protocol.errors import UnavailableError
from libdsec.protocol.ids import new_token
from libdsec.protocol.nodes import DoctorReport

from . import log
from .lock import RunLock, prefix_held
from .machine import describe

GC_THRESHOLD = 20_000
"""Allocations between collections: a call makes some dozens, none of them in cycles."""

CANCEL_TIMEOUT_S = 10.0
"""For what is canceled when the server ends: a build looks up once a second."""

_log = structlog.get_logger("dsec.serve")


def main(config: NodeConfig, *, ready: Callable[[], None] | None = None) -> None:
    """Serve until SIGTERM, SIGINT or `server.shutdown`. `ready` is called once the socket answers.

    :raises AlreadyExistsError: another server has these directories.
    :raises UnavailableError: the log, the fork server or the socket cannot be made.
    :raises UnsupportedOperationError: this machine cannot run sandboxes; says what is missing.
    """
    for directory, mode in ((config.run_dir, 0o755), (config.state_dir, 0o700)):
        try:
            os.makedirs(directory, mode, exist_ok=True)
        except OSError as error:
            raise UnavailableError(f"cannot make {directory}: {error.strerror}") from None
    try:
        log.configure(config.log_file)
    except OSError as error:
        raise UnavailableError(f"cannot write the log {config.log_file}: {error.strerror}") from None
    with contextlib.ExitStack() as locks:
        for directory in dict.fromkeys((config.run_dir, config.state_dir)):
            locks.enter_context(RunLock(os.path.join(directory, "serve.lock"), config.api_socket).held())
        identity = load_identity(config.state_dir)
        locks.enter_context(prefix_held(identity.edge_prefix))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(_run(config, identity, ready))
            except BaseExceptionGroup as group:
                raise _first(group) from group


def _first(error: BaseException) -> BaseException:
    """Why it ended: the error inside whatever groups."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _run(config: NodeConfig, identity: Identity, ready: Callable[[], None] | None) -> None:
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    loop.set_exception_handler(_unhandled)
    store = LocalStore(config.state_dir)
    try:
        async with asyncio.TaskGroup() as tasks:
            running: set[asyncio.Task[Any]] = set()

            def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
                task = tasks.create_task(_guarded(work))
                running.add(task)
                task.add_done_callback(running.discard)
                return task

            edge = _make_edge(config, identity, store, spawn)
            service = make_service(edge, ending.set, lambda _: ending.set())
            try:
                await edge.start()
                async with serve(service, config.api_socket):
                    _log.info("serving", socket=config.api_socket, node=edge.node.name, edge=edge.node.edge_prefix)
                    # what lives now lives to the end: collections need not look at it again
                    gc.freeze()
                    gc.set_threshold(GC_THRESHOLD)
                    if ready is not None:
                        ready()
                    await ending.wait()
                    _log.info("ending", sandboxes=len(edge.registry))
                    await edge.stop_all()
                    await _cancel(running)
            finally:
                await edge.close()
    finally:
        store.close()
    _log.info("ended")


async def _cancel(running: set[asyncio.Task[Any]]) -> None:
    """End what has no sandbox and may take minutes yet, such as a build. It takes away what it has made so far."""
    left = list(running)
    for task in left:
        task.cancel()
    if left:
        _, late = await asyncio.wait(left, timeout=CANCEL_TIMEOUT_S)
        if late:
            _log.warning("tasks do not end; the next start takes away what they leave", count=len(late))


def _make_edge(
    config: NodeConfig,
    identity: Identity,
    store: LocalStore,
    spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
) -> Edge:
    mounts: list[LayerMounts] = []

    def layers(hold: Any, drop: Any) -> LayerMounts:
        mounts.append(LayerMounts(hold, drop, store.catalogue.layer))
        return mounts[0]

    driver = ContainerDriver(
        ContainerConfig(
            aether=find_aether(config),
            socket_path=config.fork_server_socket,
            log_path=os.path.join(config.run_dir, "fork-server.log"),
            root_dir=os.path.join(config.run_dir, "root"),
            uppers_dir=os.path.join(config.state_dir, "uppers"),
            shm_bytes=config.shm_bytes,
            epoch=new_token(),
            fork_server_timeout_s=config.fork_server_timeout_s,
        ),
        cgroups=CgroupPool(f"dsec-{identity.edge_prefix}", Hierarchies.detect()),
        layers=layers,
        spawn=spawn,
    )
    return Edge(
        describe(config, identity),
        drivers={driver.backend: driver},
        images=StoreImages(store, mounts[0]),
        clock=SystemClock(),
        spawn=spawn,
        probe=_probe,
    )


def make_service(edge: Edge, request_shutdown: Callable[[], None], request_drain: Callable[[float], None]) -> Service:
    """What answers the clients of a node that consists of this edge alone."""
    bus = LocalBus()
    bus.serve(edge.subject, edge.handle)
    authority = Authority(os.geteuid())

    def authenticate(pid: int, uid: int, gid: int) -> Principal:
        return authority.authenticate(Peer(pid, uid, gid))

    return Service(
        bus=bus,
        authenticate=authenticate,
        place=Placement(lambda: (edge.status(),)).place,
        quota=no_quota,
        own_edge=edge.node.edge_prefix,
        node_status=edge.status,
        request_shutdown=request_shutdown,
        request_drain=request_drain,
        version=version("dsec"),
        server_pid=os.getpid(),
    )


def _probe() -> DoctorReport:
    from dsec.linux.probe import findings  # tries the machine: only where somebody asks

    return DoctorReport(tuple(findings()))


async def _guarded(work: Coroutine[Any, Any, Any]) -> None:
    """A bug in one task must not end the task group, and with it every sandbox."""
    try:
        await work
    except Exception as error:
        as_dsec_error(error, "run a task")


def _unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    _log.error("unhandled in the event loop", message=context.get("message"), exc_info=error)
