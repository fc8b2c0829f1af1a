"""Pausing a sandbox, and resuming it: asked to, or because a call came for it. One change at a time a sandbox.

A change that was begun comes to its end, whatever becomes of who asked for it: until then nobody can say what it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import structlog

from dsec import faults
from dsec.bus import as_dsec_error
from libdsec.protocol.errors import DSecError, SandboxStateError
from libdsec.protocol.lifecycle import ALLOWED, Operation, State

from .sandbox import Sandbox

if TYPE_CHECKING:
    from .edge import Edge

_log = structlog.get_logger("dsec.edge")


async def pause(edge: Edge, sandbox: Sandbox, cause: str) -> None:
    """Paused afterwards. Idempotent.

    :raises DSecError: it could not be paused and runs again, or has ended.
    """
    await _to_its_end(edge, _pause(edge, sandbox, cause))


async def resume(edge: Edge, sandbox: Sandbox, cause: str) -> None:
    """Running afterwards, seen to answer. Idempotent.

    :raises DSecError: it could not be resumed and stays paused, or has ended.
    """
    await _to_its_end(edge, _resume(edge, sandbox, cause))


async def _to_its_end(edge: Edge, change: Coroutine[Any, Any, None]) -> None:
    failures: list[Exception] = []

    async def work() -> None:
        try:
            await change
        except Exception as error:
            failures.append(error)

    await asyncio.shield(edge.spawn(work()))
    if failures:
        raise failures[0]


async def _pause(edge: Edge, sandbox: Sandbox, cause: str) -> None:
    async with sandbox.turn:
        instance = sandbox.require(Operation.PAUSE, "pause what runs")
        if sandbox.state is State.PAUSED or not sandbox.move(State.RUNNING, State.PAUSING):
            return
        sandbox.begin_pause(edge.clock.now(), edge.clock.monotonic())
        try:
            # should we die in between, the next edge must expect it frozen
            await edge.written(sandbox)
            faults.point("pause.begun")
            await instance.pause()
        except BaseException as error:
            _back(edge, sandbox, State.PAUSING, State.RUNNING, "pause", error)
            raise
        faults.point("pause.done")
        if not sandbox.move(State.PAUSING, State.PAUSED):
            raise _ended(sandbox, Operation.PAUSE)
        sandbox.log.add(edge.clock.now(), "paused", {"cause": cause})
        await edge.written(sandbox)


async def _resume(edge: Edge, sandbox: Sandbox, cause: str) -> None:
    async with sandbox.turn:
        instance = sandbox.require(Operation.RESUME, "resume what is paused")
        if not sandbox.move(State.PAUSED, State.RESUMING):
            return
        try:
            await edge.written(sandbox)
            faults.point("resume.begun")
            await instance.resume()
        except BaseException as error:
            _back(edge, sandbox, State.RESUMING, State.PAUSED, "resume", error)
            raise
        faults.point("resume.done")
        if not sandbox.move(State.RESUMING, State.RUNNING):
            raise _ended(sandbox, Operation.RESUME)
        sandbox.end_pause(edge.clock.now(), edge.clock.monotonic())
        edge.recovery.settle(sandbox)
        sandbox.log.add(edge.clock.now(), "resumed", {"cause": cause})
        await edge.written(sandbox)


def _back(edge: Edge, sandbox: Sandbox, state: State, before: State, verb: str, error: BaseException) -> None:
    """It could not be done; the driver has brought it back to where it was."""
    if not sandbox.move(state, before):
        return
    if before is State.RUNNING:
        sandbox.end_pause(edge.clock.now(), edge.clock.monotonic())
    told = error if isinstance(error, DSecError) or not isinstance(error, Exception) else as_dsec_error(error, verb)
    sandbox.log.add(edge.clock.now(), f"{verb}_failed", {"message": str(told)})
    _log.warning("sandbox not paused or resumed", sandbox=sandbox.id, verb=verb, error=str(told))
    edge.rows.save(sandbox, edge.clock.now())


def _ended(sandbox: Sandbox, operation: Operation) -> DSecError:
    if sandbox.error is not None:
        return sandbox.error
    return SandboxStateError(
        f"cannot {operation} sandbox {sandbox.id}: it is {sandbox.state} meanwhile",
        sandbox=sandbox.id,
        state=str(sandbox.state),
        operation=str(operation),
        allowed=sorted(str(state) for state in ALLOWED[operation]),
    )
