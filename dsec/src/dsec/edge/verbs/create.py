"""sandbox.create: everything is checked, then promised, then made; what was promised is taken back if it cannot be
made."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import structlog

from dsec import faults
from dsec.bus import Answerer, Caller, Request, as_dsec_error
from dsec.commandlog import Begun, OpenStep
from dsec.drivers.base import Driver, End, Instance, OnEnd, Order, Slot
from dsec.edge import ending
from dsec.edge.options import check_key, check_spec
from dsec.edge.resolve import make_defaults, timeout_ms
from dsec.edge.sandbox import Sandbox
from dsec.edge.steps import run_as_task
from dsec.edge.tasks import answer_by_task, outcome_of_commit
from libdsec.protocol.calls import CreateRequest
from libdsec.protocol.errors import (
    DSecError,
    InvalidArgumentError,
    SandboxFailedError,
    SandboxStateError,
    UnavailableError,
)
from libdsec.protocol.ids import new_sandbox_id
from libdsec.protocol.lifecycle import State
from libdsec.protocol.spec import SandboxInfo
from libdsec.protocol.steps import CREATE, MAIN, StepTag, check_scope_name

from .arguments import encode, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge

ATTEMPTS = 3
"""Of one create, where the backend's machinery goes away."""

MAX_SPEC_BYTES = 128 * 1024
"""Of an encoded request: what is kept for each sandbox and must fit into an answer."""


_log = structlog.get_logger("dsec.edge")


def create(edge: Edge, request: Request, caller: Caller) -> Answerer:
    started = edge.clock.monotonic()
    if len(request.args) > MAX_SPEC_BYTES:
        raise InvalidArgumentError(
            f"cannot take a specification of {len(request.args)} bytes: the limit is {MAX_SPEC_BYTES}", field="spec"
        )
    asked = read(request, CreateRequest)
    check_key(asked.idempotency_key)
    timeout_ms(asked.timeout_s)
    if asked.spec.job is not None:
        check_scope_name(asked.spec.job, "job")
    edge.require_taking("sandbox.create")
    made = new_sandbox_id(edge.node.edge_prefix)
    rollout = asked.spec.rollout
    if rollout is None:
        return answer_by_task(edge, _create_alone(edge, request, asked, made, started), caller, "sandbox.create")
    check_scope_name(rollout, "rollout")

    def work(step: OpenStep) -> Coroutine[Any, Any, SandboxInfo]:
        return _create(edge, request, asked, made, started, f"{step.track}/{step.n}")

    return run_as_task(edge, rollout, None, request, asked, caller, work, made=made)


async def _create_alone(edge: Edge, request: Request, asked: CreateRequest, made: str, started: float) -> SandboxInfo:
    """A sandbox with a log of its own, which begins with how it was made."""
    info = await _create(edge, request, asked, made, started, MAIN)
    if info.id == made:
        step = edge.log.begin(
            scope=made,
            tag=StepTag(CREATE, 1),
            sandbox=made,
            method=request.method,
            args=asked,
            request=bytes(request.args),
            principal=request.principal,
        )
        if isinstance(step, Begun):
            recorded, then, failed = outcome_of_commit()
            step.entry.end(state="result", answer=encode(info), stdout=(), stderr=(), then=then, failed=failed)
            faults.point("create.running")
            await recorded
            faults.point("create.recorded")
    return info


async def _create(
    edge: Edge, request: Request, asked: CreateRequest, made: str, started: float, track: str
) -> SandboxInfo:
    if (earlier := _earlier(edge, request, asked)) is not None:
        return await _joined(edge, earlier, asked.timeout_s)
    driver = edge.driver(asked.spec.backend)
    driver.check(asked.spec)
    limits = check_spec(asked.spec, edge.node.machine)
    composed = await edge.images.compose(asked.spec)
    if (earlier := _earlier(edge, request, asked)) is not None:
        # a second create with the same key came while this one waited
        return await _joined(edge, earlier, asked.timeout_s)
    edge.require_taking("create a sandbox")
    sandbox = Sandbox(
        id=made,
        spec=asked.spec,
        node=edge.node.name,
        principal=request.principal,
        now=edge.clock.now(),
        monotonic=started,
    )
    sandbox.limits, sandbox.layers, sandbox.track = limits, composed.layers, track
    if sandbox.job is None and asked.spec.rollout is not None:
        sandbox.job = edge.leases.job_of(asked.spec.rollout)
    sandbox.defaults = make_defaults(asked.spec, composed.config)
    slot = _promise(edge, sandbox)
    edge.registry.add(sandbox, asked.idempotency_key)
    sandbox.creation = asyncio.current_task()
    sandbox.log.add(sandbox.created_at, "created", {"image": asked.spec.image, "principal": request.principal})
    faults.point("create.promised")
    await _make(edge, driver, sandbox, order_of(sandbox, slot, asked.timeout_s))
    faults.point("create.made")
    sandbox.create_ms = (edge.clock.monotonic() - started) * 1000
    sandbox.log.add(edge.clock.now(), "running", {"create_ms": round(sandbox.create_ms, 3)})
    # in the same commit as the outcome of its create
    edge.rows.save(sandbox, edge.clock.now(), failed=lambda _: _unwritten(edge, sandbox))
    edge.watch(sandbox)
    return sandbox.info()


def _unwritten(edge: Edge, sandbox: Sandbox) -> None:
    """Nobody is told of it, and the next edge would take it away: so it goes now."""
    edge.registry.forget_key(sandbox)
    ending.begin_stop(edge, sandbox, "unrecorded")


def order_of(sandbox: Sandbox, slot: Slot, timeout_s: float) -> Order:
    """What the driver is told of it, also when it is adopted."""
    return Order(
        id=sandbox.id,
        spec=sandbox.spec,
        layers=sandbox.layers,
        slot=slot,
        limits=sandbox.limits,
        hostname=sandbox.spec.hostname or sandbox.id,
        timeout_s=timeout_s,
    )


def _earlier(edge: Edge, request: Request, asked: CreateRequest) -> Sandbox | None:
    if asked.idempotency_key is None:
        return None
    return edge.registry.by_key(request.principal, asked.idempotency_key, asked.spec)


def _promise(edge: Edge, sandbox: Sandbox) -> Slot:
    """:raises AdmissionRejectedError: nothing is taken then."""
    edge.admission.take(sandbox.spec.requests)
    try:
        sandbox.slot = edge.slots.take()
    except DSecError:
        edge.admission.give_back(sandbox.spec.requests)
        raise
    return sandbox.slot


async def _make(edge: Edge, driver: Driver, sandbox: Sandbox, order: Order) -> None:
    """Running afterwards, or final with everything given back and an error raised."""

    def on_end(end: End) -> None:
        ending.failed(edge, sandbox, end)

    try:
        instance = await _tried(edge, driver, sandbox, order, on_end)
    except BaseException as error:
        told = _unmade(edge, sandbox, error)
        if told is error:
            raise
        raise told from (None if isinstance(error, DSecError) else error)
    sandbox.instance = instance
    if sandbox.move(State.CREATING, State.RUNNING):
        sandbox.used = edge.clock.monotonic()
        return
    if sandbox.state is State.FAILED:
        # it ended between its first answer and now
        ended = sandbox.error or SandboxFailedError(f"cannot use sandbox {sandbox.id}: it ended at once")
        ending.clean(edge, sandbox, ended)
        raise ended
    raise _stopped(sandbox)


async def _tried(edge: Edge, driver: Driver, sandbox: Sandbox, order: Order, on_end: OnEnd) -> Instance:
    """Again where the machinery went away in the middle and nothing was made: it is there again by then."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await driver.create(order, on_end)
        except UnavailableError as error:
            if attempt == ATTEMPTS or edge.closing or sandbox.state is not State.CREATING:
                raise
            _log.warning("creating again", sandbox=sandbox.id, why=str(error))
    raise AssertionError("unreachable")


def _unmade(edge: Edge, sandbox: Sandbox, error: BaseException) -> BaseException:
    """The driver has left nothing behind; take back the promises, and say what the creator is to be told."""
    edge.give_back(sandbox)
    now = edge.clock.now()
    if sandbox.move(State.STOPPING, State.STOPPED):
        sandbox.log.add(now, "stopped", {"cause": sandbox.cause})
        told: BaseException = _stopped(sandbox)
    elif isinstance(error, asyncio.CancelledError):
        sandbox.move(State.CREATING, State.FAILED)
        sandbox.cause, sandbox.message = "canceled", "its creator gave it up"
        sandbox.log.add(now, "failed", {"cause": sandbox.cause})
        told = error
    else:
        sandbox.move(State.CREATING, State.FAILED)
        refusal = as_dsec_error(error, f"create sandbox {sandbox.id}")
        sandbox.cause, sandbox.message, sandbox.error = "create_failed", str(refusal), refusal
        sandbox.log.add(now, "failed", {"cause": sandbox.cause, "code": refusal.code, "message": sandbox.message})
        told = refusal
    edge.registry.discard(sandbox)
    return told


async def _joined(edge: Edge, sandbox: Sandbox, timeout_s: float) -> SandboxInfo:
    """The outcome of the create that came first with the same key."""
    try:
        async with asyncio.timeout(timeout_s):
            await sandbox.settled.wait()
    except TimeoutError:
        raise SandboxStateError(
            f"cannot answer the create of {sandbox.id} yet: it was asked for before and is still being made",
            sandbox=sandbox.id,
            state=str(sandbox.state),
        ) from None
    if sandbox.error is not None and sandbox.create_ms is None:
        raise sandbox.error
    await edge.written(sandbox)  # it may have come to life in this very turn
    return sandbox.info()


def _stopped(sandbox: Sandbox) -> SandboxStateError:
    return SandboxStateError(
        f"cannot create sandbox {sandbox.id}: it was stopped while it was being made",
        sandbox=sandbox.id,
        state=str(sandbox.state),
    )
