"""The edge object: what its verbs share."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from dsec.bus import Answerer, Caller, Request, as_dsec_error, encode_error
from dsec.commandlog import CommandLog, Held
from dsec.drivers.base import Driver
from dsec.journal import Journal
from libdsec.protocol.errors import UnavailableError, UnsupportedOperationError
from libdsec.protocol.nodes import DoctorReport, NodeStatus

from . import bulk, ending
from .admission import Admission
from .clock import Clock
from .images import Images
from .leases import Lease, Leases
from .options import Machine
from .reaper import Reaper
from .recovery import Recovery
from .registry import Registry
from .rows import Rows
from .sandbox import Sandbox
from .slots import Slots
from .tasks import ANSWERED, Spawn, outcome_of_commit
from .verbs import VERBS

_log = structlog.get_logger("dsec.edge")

Probe = Callable[[], DoctorReport]
"""Tries what the machine can do; blocks."""

SWEEP_S = 5.0
"""Between two looks for overdue calls."""

LEASES_S = 1.0
"""Between two looks for leases that are over."""

ABSENT_S = 3.0
"""More than that beyond `LEASES_S` since the last look is no slow turn of the loop: this process stood still."""

PRUNE_S = 600.0
"""Between two looks for command logs that are kept long enough."""

IMAGES_S = 60.0
"""Between two looks for layers beyond the node's limit."""

DRAIN_POLL_S = 0.05

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
        self,
        node: Node,
        *,
        drivers: dict[str, Driver],
        images: Images,
        journal: Journal,
        log: CommandLog,
        clock: Clock,
        spawn: Spawn,
        probe: Probe,
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
        self.journal = journal
        self.log = log
        self.held = Held()
        self.calls = 0
        """That run in sandboxes now."""
        self.image_streams = 0
        """Calls that read images out."""
        self._over: set[str] = set()
        self.rows = Rows(journal)
        self.leases = Leases(journal, clock, self.registry.leased)
        self.recovery = Recovery(self)
        self.closing = False
        self._looked = math.inf
        """By the loop's time."""
        self._timer: asyncio.TimerHandle | None = None
        self._tending: asyncio.Task[Any] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def subject(self) -> str:
        """What the edge serves on the bus."""
        return f"edge.{self.node.edge_prefix}"

    async def start(self) -> None:
        """Make the drivers ready; what an earlier edge left is adopted, or finished and taken away."""
        for driver in self.drivers.values():
            await driver.start()
        self.leases.load()
        await self.recovery.run()
        self._every("sweep", SWEEP_S, self.sweep)
        self._every("scopes", SWEEP_S, self.end_scopes)
        self._every("leases", LEASES_S, self.end_orphans)
        self._every("prune", PRUNE_S, self.prune)
        self._every("images", IMAGES_S, self.tend_images)

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

    def require_taking(self, method: str) -> None:
        """:raises UnavailableError: the edge is closing or draining; the next one will take it."""
        if self.closing:
            raise UnavailableError(
                f"cannot take {method}: this node's server is ending", node=self.node.name, closing=True
            )

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
        self.recovery.forget(sandbox.id)  # what it has not named by now it never will
        sandbox.instance = None  # first: what was given back cannot be described any more
        self.rows.save(sandbox, self.clock.now())
        self.reaper.ended(sandbox)
        self.registry.finish(sandbox)
        self.scope_over(sandbox.scope)

    def scope_over(self, scope: str) -> None:
        """Perhaps nobody says any more to this log: it ends at a later sweep, if nothing in it runs then."""
        self._over.add(scope)

    async def written(self, sandbox: Sandbox) -> None:
        """Its row, as it is now, is in the journal afterwards."""
        done, then, failed = outcome_of_commit()
        self.rows.save(sandbox, self.clock.now(), then, failed)
        await done

    def end_scopes(self) -> None:
        """Command logs whose sandboxes have all ended are kept for their time, and end now."""
        alive = {sandbox.scope for sandbox in self.registry.live()}
        over, self._over = self._over, set()
        for scope in over - alive:
            if self.log.running_steps(scope) or self.leases.holds("rollout", scope):
                self._over.add(scope)
            else:
                self.log.end_scope(scope)

    def notice_absence(self) -> None:
        """Where this process stood still (stopped, or its machine was), what came meanwhile waits to be read: answers,
        calls, renewals. So that time counts against nobody."""
        now = asyncio.get_running_loop().time()
        absent, self._looked = now - self._looked - LEASES_S, now
        if absent < ABSENT_S:
            return
        _log.warning("this process stood still", seconds=round(absent, 1))
        self.leases.forgive(absent)
        for sandbox in self.registry.live():
            if sandbox.paused_at is None:
                sandbox.used += absent
                for relay in sandbox.open:
                    relay.due += absent

    def end_orphans(self) -> None:
        """Pause or stop what nobody holds any more."""
        self.notice_absence()
        for lease, action in self.leases.due():
            orphans = self.registry.of_lease(lease.kind, lease.name)
            _log.info("orphaned", kind=lease.kind, name=lease.name, action=action, sandboxes=len(orphans))
            self.spawn(self._end_orphans_of(lease, orphans, bulk.ACTIONS[action]))

    async def _end_orphans_of(self, lease: Lease, orphans: list[Sandbox], action: bulk.Action) -> None:
        await bulk.act(self, orphans, action, "orphaned", lambda *_: None)
        self.leases.acted(lease)

    def prune(self) -> None:
        """Let go of command logs that were kept long enough."""
        for scope, _ in self.log.scopes():
            self.scope_over(scope)
        self.spawn(self.log.prune(self.clock.now()))

    def tend_images(self) -> None:
        """Write down which layers are used, and collect those beyond the node's limit."""
        if self._tending is None or self._tending.done():
            self._tending = self.spawn(self.images.tend())

    def sweep(self) -> None:
        """Answer the calls whose PID 1 is long overdue: one that hangs must not make its callers hang. Write what a
        full disk did not take."""
        self.notice_absence()
        self.log.mend()
        self.rows.mend(self.clock.now())
        now = self.clock.monotonic()
        for sandbox in self.registry.live():
            if sandbox.paused_at is not None:
                continue
            for relay in [relay for relay in sandbox.open if relay.due < now]:
                _log.warning("PID 1 is overdue", sandbox=sandbox.id)
                relay.expire()

    def reap(self) -> None:
        """Begin the stop of everything that is due."""
        self.notice_absence()
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

    async def drain(self, timeout_s: float) -> None:
        """Refuse new work and wait for what runs; afterwards `close(leave=True)` may end us without a loss: what goes
        on unheard is kept by the sandboxes."""
        self.closing = True
        deadline = self.clock.monotonic() + timeout_s
        while self.clock.monotonic() < deadline:
            if not any(sandbox.open or not sandbox.settled.is_set() for sandbox in self.registry.live()):
                return
            await asyncio.sleep(DRAIN_POLL_S)
        _log.info("calls go on without a server", sandboxes=sum(bool(s.open) for s in self.registry.live()))

    async def close(self, *, leave: bool = False) -> None:
        """End the drivers, and with them what is left; with `leave` that goes on and the next edge adopts it. Legal
        also after a start that failed."""
        self.closing = True
        for timer in (*self._timers.values(), *([self._timer] if self._timer is not None else ())):
            timer.cancel()
        for driver in self.drivers.values():
            await driver.close(leave=leave)

    def _every(self, name: str, seconds: float, work: Callable[[], None]) -> None:
        """Do it now and then, until the edge closes."""

        def again() -> None:
            if self.closing:
                return
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, again)
            work()

        again()

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
