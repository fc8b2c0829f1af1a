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
from dsec.commandlog import SCHEMA as LOG_SCHEMA
from dsec.commandlog import Bounds, CommandLog
from dsec.config import MIB, NodeConfig, find_aether
from dsec.drivers.container.driver import ContainerConfig, ContainerDriver
from dsec.edge import Edge, leases, rows, starts
from dsec.edge.clock import SystemClock
from dsec.edge.identity import Identity, load_identity
from dsec.edge.images import StoreImages
from dsec.iam import Authority, Peer, Principal, no_quota
from dsec.journal import Journal
from dsec.linux.cgroups import CgroupPool, Hierarchies
from dsec.placement import Placement
from dsec.store.loading.loader import Loader
from dsec.store.local import LocalStore
from dsec.store.mounts import LayerMounts
from dsec.store.remote.opening import open_store
from dsec.store.remote.shared import SharedStore
from libdsec.protocol.errors import UnavailableError
from libdsec.protocol.ids import new_token
from libdsec.protocol.images import ImageStatsAnswer
from libdsec.protocol.nodes import DoctorReport, NodeStatus

from . import log
from .home import take_home
from .layers import make_loader, make_mounts
from .lock import RunLock, ids_claimed, prefix_held
from .machine import describe

GC_THRESHOLD = 20_000
"""Allocations between collections: a call makes some dozens, none of them in cycles."""

CANCEL_TIMEOUT_S = 10.0
"""For what is canceled when the server ends: a build looks up once a second."""

LogOf = Callable[[NodeConfig, Journal], CommandLog]

_log = structlog.get_logger("dsec.serve")


def open_log(config: NodeConfig, journal: Journal) -> CommandLog:
    """:raises UnavailableError | CapacityError: it cannot be read or written."""
    bounds = Bounds(keep_s=config.log_keep_s, total_bytes=config.log_bytes)
    return CommandLog(journal, config.logs_dir, SystemClock(), bounds=bounds)


def main(config: NodeConfig, *, ready: Callable[[], None] | None = None, log_of: LogOf = open_log) -> None:
    """Serve until SIGTERM, SIGINT, `server.shutdown` or `server.drain`. `ready` is called once the socket answers.

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
        take_home(config)
        identity = load_identity(config.state_dir)
        locks.enter_context(prefix_held(identity.edge_prefix))
        locks.enter_context(ids_claimed(config.id_base))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(_run(config, identity, ready, log_of))
            except BaseExceptionGroup as group:
                raise _first(group) from group


def _first(error: BaseException) -> BaseException:
    """Why it ended: the error inside whatever groups."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _run(config: NodeConfig, identity: Identity, ready: Callable[[], None] | None, log_of: LogOf) -> None:
    loop = asyncio.get_running_loop()
    ending = Ending()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.stop)
    loop.set_exception_handler(_unhandled)
    store = LocalStore(config.state_dir)
    shared = open_shared(config, store)
    loader = make_loader(config, store, shared)
    journal = open_journal(config.journal_path, loop, durable=config.durable)
    try:
        async with asyncio.TaskGroup() as tasks:
            running: set[asyncio.Task[Any]] = set()

            def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
                task = tasks.create_task(_guarded(work))
                running.add(task)
                task.add_done_callback(running.discard)
                return task

            edge = _make_edge(config, identity, store, shared, loader, journal, log_of(config, journal), spawn)
            service = make_service(edge, ending.stop, ending.drain)
            try:
                await edge.start()
                async with _exporting(config, edge), serve(service, config.api_socket):
                    _log.info("serving", socket=config.api_socket, node=edge.node.name, edge=edge.node.edge_prefix)
                    # what lives now lives to the end: collections need not look at it again
                    gc.freeze()
                    gc.set_threshold(GC_THRESHOLD)
                    if ready is not None:
                        ready()
                    await ending.asked.wait()
                    _log.info("ending", sandboxes=len(edge.registry), left_running=ending.leave)
                    if ending.leave:
                        await edge.drain(ending.timeout_s)
                    else:
                        await edge.stop_all()
                    await _cancel(running)
            finally:
                await edge.close(leave=ending.leave)
    finally:
        await journal.close()
        await asyncio.to_thread(loader.close)
        if shared is not None:
            shared.close()
        store.close()
    _log.info("ended")


class Ending:
    """Whether and how the server is to end. The first wish counts, but a stop may follow a drain."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.leave = False
        """Sandboxes go on, and the next server adopts them."""
        self.timeout_s = 0.0

    def stop(self) -> None:
        self.leave = False
        self.asked.set()

    def drain(self, timeout_s: float) -> None:
        if not self.asked.is_set():
            self.leave, self.timeout_s = True, timeout_s
            self.asked.set()


def open_journal(path: str, loop: asyncio.AbstractEventLoop, *, durable: bool = False) -> Journal:
    """:raises UnavailableError | CapacityError: it cannot be read or written."""
    schemas = (rows.SCHEMA, leases.SCHEMA, starts.SCHEMA, LOG_SCHEMA)
    return Journal(path, loop, schemas, durable=durable)


def open_shared(config: NodeConfig, store: LocalStore) -> SharedStore | None:
    """The shared store that the node's settings name. It is not asked for anything yet.

    :raises InvalidArgumentError: not the URL of a store.
    :raises UnavailableError: its directory is not there.
    """
    return None if config.store is None else SharedStore(open_store(config.store), store, raw=config.store_raw)


def _exporting(config: NodeConfig, edge: Edge) -> contextlib.AbstractAsyncContextManager[object]:
    if config.metrics is None:
        return contextlib.nullcontext()
    from .metrics import exporting  # only who asks for figures needs an HTTP server

    async def figures() -> tuple[NodeStatus, ImageStatsAnswer]:
        return edge.status(), await edge.images.stats("")

    return exporting(config.metrics, figures)


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
    shared: SharedStore | None,
    loader: Loader,
    journal: Journal,
    command_log: CommandLog,
    spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
) -> Edge:
    mounts: list[LayerMounts] = []

    def layers(hold: Any, drop: Any) -> LayerMounts:
        mounts.append(make_mounts(hold, drop, store, loader))
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
            start_number=starts.count_start(journal, SystemClock().now()),
        ),
        cgroups=CgroupPool(f"dsec-{identity.edge_prefix}", Hierarchies.detect()),
        layers=layers,
        spawn=spawn,
        attach=loader.attach,
    )
    return Edge(
        describe(config, identity),
        drivers={driver.backend: driver},
        images=StoreImages(
            store,
            mounts[0],
            shared,
            loader=loader,
            limit_bytes=config.layers_limit_mb * MIB,
            cache_limit_bytes=config.cache_limit_mb * MIB,
        ),
        journal=journal,
        log=command_log,
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
        _log.error("a task failed", error=str(as_dsec_error(error, "run a task")))


def _unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    _log.error("unhandled in the event loop", message=context.get("message"), exc_info=error)
