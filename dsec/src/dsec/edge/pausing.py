"""Pausing a sandbox, and resuming it: asked to, or because a call came for it. One change at a time a sandbox.

A change that was begun comes to its end, whatever becomes of who asked for it: until then nobody can say what it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog

from dsec import faults
from dsec.bus import as_dsec_error
from libdsec.protocol.errors import DSecError
from libdsec.protocol.lifecycle import Operation, State

from .sandbox import Sandbox

if TYPE_CHECKING:
    from .edge import Edge

_log = structlog.get_logger("dsec.edge")


async def pause(edge: Edge, sandbox: Sandbox, cause: str) -> None:
    """Paused afterwards. Idempotent. On a full disk that may not be written yet: should the edge die before it is, the
    next one resumes it.

    Whoever gives it up gives up what it has done: it runs again, as do the calls that it has stopped.
    :raises DSecError: it could not be paused and runs again, or has ended.
    """
    try:
        await _to_its_end(edge, _pause(edge, sandbox, cause))
    except asyncio.CancelledError:
        if not edge.closing:
            edge.spawn(_undo(edge, sandbox))
        raise


async def _undo(edge: Edge, sandbox: Sandbox) -> None:
    try:
        await resume(edge, sandbox, "given_up")
    except DSecError as error:
        _log.warning("a pause that was given up could not be undone", sandbox=sandbox.id, error=str(error))


async def resume(edge: Edge, sandbox: Sandbox, cause: str) -> None:
    """Running afterwards, seen to answer. Idempotent.

    :raises DSecError: it could not be resumed and stays paused, or has ended.
    """
    await _to_its_end(edge, _resume(edge, sandbox, cause))


async def wake(edge: Edge, sandbox: Sandbox) -> None:
    """Resume it for something that somebody says to what runs there already. Nobody waits to be told."""
    try:
        await resume(edge, sandbox, "call")
    except DSecError as error:
        _log.warning("not resumed for a call that was under way", sandbox=sandbox.id, error=str(error))


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
        if not sandbox.move(State.RUNNING, State.PAUSING):
            return
        sandbox.begin_pause(edge.clock.now(), edge.clock.monotonic())
        with _brought_back(edge, sandbox, State.PAUSING, State.RUNNING, "pause"):
            # should we die in between, the next edge must expect it frozen
            await edge.written(sandbox)
            faults.point("pause.begun")
            await instance.pause()
        faults.point("pause.done")
        if not sandbox.move(State.PAUSING, State.PAUSED):
            raise _ended(sandbox, Operation.PAUSE)
        await _note(edge, sandbox, "paused", cause)


async def _resume(edge: Edge, sandbox: Sandbox, cause: str) -> None:
    async with sandbox.turn:
        instance = sandbox.require(Operation.RESUME, "resume what is paused")
        if not sandbox.move(State.PAUSED, State.RESUMING):
            return
        with _brought_back(edge, sandbox, State.RESUMING, State.PAUSED, "resume"):
            await edge.written(sandbox)
            faults.point("resume.begun")
            await instance.resume()
        faults.point("resume.done")
        if not sandbox.move(State.RESUMING, State.RUNNING):
            raise _ended(sandbox, Operation.RESUME)
        sandbox.end_pause(edge.clock.now(), edge.clock.monotonic())
        edge.recovery.settle(sandbox)
        await _note(edge, sandbox, "resumed", cause)


@contextmanager
def _brought_back(edge: Edge, sandbox: Sandbox, state: State, before: State, verb: str) -> Iterator[None]:
    """Where it cannot be done the driver has brought it back to where it was."""
    try:
        yield
    except BaseException as error:
        if sandbox.move(state, before):
            if before is State.RUNNING:
                sandbox.end_pause(edge.clock.now(), edge.clock.monotonic())
            told = (
                error
                if isinstance(error, DSecError) or not isinstance(error, Exception)
                else as_dsec_error(error, verb)
            )
            sandbox.log.add(edge.clock.now(), f"{verb}_failed", {"message": str(told)})
            _log.warning("sandbox not paused or resumed", sandbox=sandbox.id, verb=verb, error=str(told))
            edge.rows.save(sandbox, edge.clock.now())
        raise


async def _note(edge: Edge, sandbox: Sandbox, event: str, cause: str) -> None:
    """It is done, and so it is said, also where it cannot be written: it will be when there is room. An edge that dies
    before that has it running again."""
    sandbox.log.add(edge.clock.now(), event, {"cause": cause})
    try:
        await edge.written(sandbox)
    except DSecError as error:
        _log.warning("not written yet", sandbox=sandbox.id, state=str(sandbox.state), error=str(error))


def _ended(sandbox: Sandbox, operation: Operation) -> DSecError:
    if sandbox.error is not None:
        return sandbox.error
    return sandbox.not_allowed(operation, f"cannot {operation} sandbox {sandbox.id}: it is {sandbox.state} meanwhile")
