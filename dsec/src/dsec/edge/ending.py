"""How a sandbox ends: asked to, or by itself. Everyone who asks joins the same ending."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from dsec import faults
from dsec.bus import as_dsec_error
from dsec.drivers.base import End
from libdsec.protocol.errors import DSecError, SandboxFailedError
from libdsec.protocol.lifecycle import ALIVE, State

from .sandbox import Sandbox

if TYPE_CHECKING:
    from .edge import Edge

_log = structlog.get_logger("dsec.edge")


async def stop(edge: Edge, sandbox: Sandbox, cause: str) -> None:
    """Stopped (or failed) afterwards, with everything given back. Idempotent; legal in every state.

    :raises InternalError: something could not be given back; the sandbox has failed then.
    """
    begin_stop(edge, sandbox, cause)
    if sandbox.ending is not None:
        await asyncio.shield(sandbox.ending)
        if sandbox.error is not None and sandbox.cause == "stop_failed":
            raise sandbox.error


def begin_stop(edge: Edge, sandbox: Sandbox, cause: str) -> None:
    """Start the ending unless one is under way; does not wait for it."""
    if sandbox.ending is not None or sandbox.final:
        return
    if sandbox.move(State.CREATING, State.STOPPING):
        sandbox.cause = cause
        sandbox.ending = edge.spawn(_stop_creating(edge, sandbox))
    elif any(sandbox.move(state, State.STOPPING) for state in ALIVE):
        sandbox.cause = cause
        edge.rows.save(sandbox, edge.clock.now())
        sandbox.ending = edge.spawn(_stop_running(edge, sandbox))


async def _stop_creating(edge: Edge, sandbox: Sandbox) -> None:
    """The create's task does the clean-up: it alone knows how far it came."""
    creation = sandbox.creation
    if creation is not None and not creation.done():
        if not creation.cancelling():
            creation.cancel()
        await asyncio.wait([creation])
    if not sandbox.final:
        # it finished before the cancel reached it: an ordinary stop
        await _stop_running(edge, sandbox)


async def _stop_running(edge: Edge, sandbox: Sandbox) -> None:
    _hasten(sandbox)
    async with sandbox.turn:
        await _stop_in_turn(edge, sandbox)


def _hasten(sandbox: Sandbox) -> None:
    """A pause or resume that is under way has the turn; it need not come to its own end."""
    if sandbox.instance is not None:
        sandbox.instance.hasten()


async def _stop_in_turn(edge: Edge, sandbox: Sandbox) -> None:
    faults.point("stop.begun")
    error = SandboxFailedError(
        f"cannot finish: sandbox {sandbox.id} was stopped ({sandbox.cause})", sandbox=sandbox.id, cause=sandbox.cause
    )
    if await _destroy(edge, sandbox, error):
        sandbox.move(State.STOPPING, State.STOPPED)
        sandbox.log.add(edge.clock.now(), "stopped", {"cause": sandbox.cause})
    else:
        sandbox.move(State.STOPPING, State.FAILED)
        sandbox.cause = "stop_failed"
        sandbox.log.add(edge.clock.now(), "failed", {"cause": sandbox.cause, "message": sandbox.message})
    faults.point("stop.done")
    edge.finish(sandbox)


def failed(edge: Edge, sandbox: Sandbox, end: End) -> None:
    """The driver says that the sandbox has ended by itself."""
    if not any(sandbox.move(state, State.FAILED) for state in (*ALIVE, State.CREATING)):
        return
    sandbox.cause, sandbox.message = end.cause, end.message
    sandbox.error = SandboxFailedError(
        f"cannot use sandbox {sandbox.id}: {end.message}", sandbox=sandbox.id, cause=end.cause
    )
    sandbox.log.add(edge.clock.now(), "failed", {"cause": end.cause, "message": end.message, **end.detail})
    edge.rows.save(sandbox, edge.clock.now())
    if sandbox.instance is not None:
        clean(edge, sandbox, sandbox.error)


def clean(edge: Edge, sandbox: Sandbox, error: DSecError) -> None:
    """Begin to give back what a sandbox had that has failed."""
    sandbox.ending = edge.spawn(_clean(edge, sandbox, error))


async def _clean(edge: Edge, sandbox: Sandbox, error: DSecError) -> None:
    _hasten(sandbox)
    async with sandbox.turn:
        await _destroy(edge, sandbox, error)
        edge.finish(sandbox)


async def _destroy(edge: Edge, sandbox: Sandbox, error: DSecError) -> bool:
    """Have the driver give back everything, then slot and admission. False: they stay taken, since something still
    lives."""
    if sandbox.instance is not None:
        try:
            await sandbox.instance.destroy(error)
        except Exception as problem:
            sandbox.error = as_dsec_error(problem, f"give back sandbox {sandbox.id}")
            sandbox.message = str(sandbox.error)
            _log.error("sandbox not given back", sandbox=sandbox.id, error=sandbox.message)
            return False
    edge.give_back(sandbox)
    return True
