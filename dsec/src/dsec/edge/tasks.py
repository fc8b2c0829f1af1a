"""Calls that need a task of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from dsec.bus import Caller, as_dsec_error, encode_error
from libdsec.protocol.errors import DeadlineExceededError, DSecError, UnavailableError

if TYPE_CHECKING:
    from .edge import Edge

Spawn = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]
"""Runs a coroutine in a task group; the coroutine lets no exception out."""

_encode = msgspec.msgpack.Encoder().encode


class Nothing:
    """The answering end of a call that was answered at once."""

    def data(self, stream: int, payload: bytes, flags: int) -> None: ...

    def credit(self, stream: int, amount: int) -> None: ...

    def event(self, payload: bytes) -> None: ...

    def cancel(self) -> None: ...

    def abandon(self) -> None: ...


ANSWERED = Nothing()


class TaskCall(Nothing):
    """The answering end of a call that a task answers. Abandoned, it goes on: its effect was asked for."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def cancel(self) -> None:
        # a task that is canceled before its first step never takes it, and would answer nobody
        asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        if not self._task.cancelling():
            self._task.cancel()


def answer_by_task(edge: Edge, work: Coroutine[Any, Any, msgspec.Struct], caller: Caller, doing: str) -> TaskCall:
    return TaskCall(edge.spawn(answered(edge, work, caller, doing)))


async def answered(edge: Edge, work: Coroutine[Any, Any, msgspec.Struct], caller: Caller, doing: str) -> None:
    try:
        answer = await work
    except asyncio.CancelledError:
        caller.error(encode_error(given_up(edge, doing)))
        raise
    except Exception as error:
        caller.error(encode_error(as_dsec_error(error, f"finish {doing}")))
    else:
        caller.result(_encode(answer))


def given_up(edge: Edge, doing: str) -> DSecError:
    """Why a task was canceled: the next edge does what this one leaves undone, and that is no outcome."""
    if edge.closing:
        return UnavailableError(f"cannot finish {doing}: this node's server is ending", closing=True)
    return DeadlineExceededError(f"cannot finish {doing}: its caller gave it up")


def outcome_of_commit() -> tuple[asyncio.Future[None], Callable[[], None], Callable[[DSecError], None]]:
    """A future and the two callbacks of the journal that decide it; whoever waited may have been canceled."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def then() -> None:
        if not future.done():
            future.set_result(None)

    def failed(error: DSecError) -> None:
        if not future.done():
            future.set_exception(error)

    return future, then, failed
