"""The edge object: what its verbs share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from dsec.bus import Answerer, Caller, Request, as_dsec_error, encode_error
from dsec.drivers.base import Driver
from libdsec.protocol.errors import UnavailableError, UnsupportedOperationError
from libdsec.protocol.nodes import DoctorReport, NodeStatus

from . import ending
from .admission import Admission
from .clock import Clock
from .images import Images
from .options import Machine
from .reaper import Reaper
from .registry import Registry
from .sandbox import Sandbox
from .slots import Slots
from .tasks import ANSWERED, Spawn
from .verbs import VERBS

_log = structlog.get_logger("dsec.edge")

Probe = Callable[[], DoctorReport]
"""Tries what the machine can do; blocks."""

SWEEP_S = 5.0
"""Between two looks for overdue calls."""

STOP_TIMEOUT_S = 60.0
"""For all sandboxes together when the edge closes."""


@dataclass(frozen=True, slots=True)
class Node:
    """What an edge is told of its node."""

    name: str
    edge_prefix: str
    machine: Machine
    memory_for_requests: int
    pids_for_requests: int
    id_base: int
    id_ranges: int
    kept_final: int


class Edge:
    def __init__(
        self, node: Node, *, drivers: dict[str, Driver], images: Images, clock: Clock, spawn: Spawn, probe: Probe
    ) -> None:
        """`spawn` runs coroutines in the task group of whoever owns the edge; `probe` answers `dsec doctor`."""
        self.node = node
        self.drivers = drivers
        self.images = images
        self.clock = clock
        self.spawn = spawn
        self.probe = probe
        self.registry = Registry(node.kept_final)
        self.admission = Admission(node.name, node.memory_for_requests, node.pids_for_requests)
        self.slots = Slots(node.id_base, node.id_ranges)
        self.reaper = Reaper()
        self.closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def subject(self) -> str:
        """What the edge serves on the bus."""
        return f"edge.{self.node.edge_prefix}"

    async def start(self) -> None:
        """Make the drivers ready; what an earlier edge left is taken away."""
        for driver in self.drivers.values():
            await driver.start()
        self.sweep()

    def handle(self, request: Request, caller: Caller) -> Answerer:
        """The bus handler: every call of this node."""
        verb = VERBS.get(request.method)
        try:
            if verb is None:
                raise UnsupportedOperationError(f"cannot call {request.method}: this edge does not know it")
            return verb(self, request, caller)
        except Exception as error:
            caller.error(encode_error(as_dsec_error(error, f"answer {request.method}")))
            return ANSWERED

    def require_open(self, doing: str) -> None:
        """:raises UnavailableError: the edge is closing."""
        if self.closing:
            raise UnavailableError(f"cannot {doing}: this node is shutting down", node=self.node.name)

    def driver(self, backend: str) -> Driver:
        """:raises UnsupportedOperationError: this node has no such backend."""
        found = self.drivers.get(backend)
        if found is None:
            raise UnsupportedOperationError(
                f"cannot make a sandbox of backend {backend!r}: this node has {', '.join(sorted(self.drivers))}",
                option="backend",
            )
        return found

    def status(self) -> NodeStatus:
        node, admission = self.node, self.admission
        return NodeStatus(
            name=node.name,
            edge_prefix=node.edge_prefix,
            backends=tuple(self.drivers),
            memory_bytes=admission.memory_bytes,
            memory_requested=admission.memory_requested,
            pids=admission.pids,
            pids_requested=admission.pids_requested,
            sandboxes=len(self.registry),
            healthy=not self.closing,
            reason="shutting down" if self.closing else None,
        )

    def watch(self, sandbox: Sandbox) -> None:
        """It lives: from now on it may become due."""
        self.reaper.watch(sandbox)
        self._arm()

    def give_back(self, sandbox: Sandbox) -> None:
        """Slot and admission, once."""
        slot, sandbox.slot = sandbox.slot, None
        if slot is not None:
            self.slots.give_back(slot)
            self.admission.give_back(sandbox.spec.requests)

    def finish(self, sandbox: Sandbox) -> None:
        """It is final and everything was given back."""
        sandbox.instance = None
        self.reaper.ended(sandbox)
        self.registry.finish(sandbox)

    def sweep(self) -> None:
        """Answer the calls whose PID 1 is long overdue: one that hangs must not make its callers hang."""
        now = self.clock.monotonic()
        for sandbox in self.registry.live():
            for relay in [relay for relay in sandbox.open if relay.due < now]:
                _log.warning("PID 1 is overdue", sandbox=sandbox.id)
                relay.expire()
        if not self.closing:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self.sweep)

    def reap(self) -> None:
        """Begin the stop of everything that is due."""
        for sandbox, cause in self.reaper.due(self.clock.monotonic()):
            ending.begin_stop(self, sandbox, cause)
        self._timer = None
        self._arm()

    async def stop_all(self) -> None:
        """Stop every sandbox; new work is refused from the start. Bounded in time."""
        self.closing = True
        if self._timer is not None:
            self._timer.cancel()
        live = list(self.registry.live())
        for sandbox in live:
            ending.begin_stop(self, sandbox, "shutdown")
        endings = [sandbox.ending for sandbox in live if sandbox.ending is not None]
        if endings:
            _, late = await asyncio.wait(endings, timeout=STOP_TIMEOUT_S)
            if late:
                _log.error("sandboxes did not stop in time; ending their backend", count=len(late))

    async def close(self) -> None:
        """End the drivers, and with them what is left. Legal also after a start that failed."""
        self.closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for driver in self.drivers.values():
            await driver.close()

    def _arm(self) -> None:
        """One timer, for the earliest that may be due."""
        when = self.reaper.next_due()
        if when is None or self.closing:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + max(0.0, when - self.clock.monotonic())
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self.reap)
