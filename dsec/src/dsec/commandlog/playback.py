"""The recorded outcome of a step as the answer of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dsec.bus import Answerer, Caller, as_dsec_error, encode_error
from libdsec.protocol.errors import DeadlineExceededError
from libdsec.protocol.frames import DATA_CHUNK, STDERR, STDOUT
from libdsec.protocol.steps import step_name

from .entry import RecordedStep
from .flow import Flow

if TYPE_CHECKING:
    from .log import CommandLog

Spawn = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]
"""Runs a coroutine in a task group; the coroutine lets no exception out."""

READ_AT_ONCE = 1024 * 1024
"""Bytes of a large output that are in memory, of each call."""


def play(log: CommandLog, step: RecordedStep, caller: Caller, spawn: Spawn) -> Answerer:
    """Answer as the first time: DATA on streams 2 and 3, then RESULT or ERROR. What lies in the row is answered
    before this returns."""
    flow = Flow(caller)
    if step.stdout is None or step.stderr is None:
        spawn(_play(log, step, flow))
        return flow
    for stream, data, cuts in ((STDOUT, step.stdout, step.cuts), (STDERR, step.stderr, ())):
        for start, end in pieces(len(data), cuts):
            caller.data(stream, data[start:end], 0)
    _answer(step, caller)
    return flow


async def _play(log: CommandLog, step: RecordedStep, flow: Flow) -> None:
    name = step_name(step.track, step.n)
    try:
        if await send_output(log, step, flow):
            _answer(step, flow.caller)
        else:
            flow.caller.error(encode_error(_given_up(name)))
    except asyncio.CancelledError:
        flow.caller.error(encode_error(_given_up(name)))
        raise
    except Exception as error:
        flow.caller.error(encode_error(as_dsec_error(error, f"replay step {name}")))


async def send_output(log: CommandLog, step: RecordedStep, flow: Flow) -> bool:
    """The output of a step, as it was. False: the caller has gone.

    :raises IntegrityError: the file does not have it any more.
    """
    streams = (
        (STDOUT, step.stdout, step.blob_at, step.stdout_size, step.cuts),
        (STDERR, step.stderr, step.blob_at + step.stdout_size, step.stderr_size, ()),
    )
    for stream, inline, at, size, cuts in streams:
        for batch in _batches(pieces(size, cuts)):
            first, last = batch[0][0], batch[-1][1]
            if inline is not None:
                data = inline[first:last]
            else:
                data = await log.read_blob(step.scope_id, at + first, last - first)
            for start, end in batch:
                if not await flow.send(stream, data[start - first : end - first]):
                    return False
    return True


def pieces(size: int, cuts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where each DATA begins and ends: at the cuts where each is a value of its own, else as large as may be."""
    start = 0
    for length in cuts:
        yield start, start + length
        start += length
    for rest in range(start, size, DATA_CHUNK):
        yield rest, min(rest + DATA_CHUNK, size)


def _batches(cut: Iterator[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Neighbours that are read together."""
    batch: list[tuple[int, int]] = []
    for piece in cut:
        if batch and piece[1] - batch[0][0] > READ_AT_ONCE:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def _answer(step: RecordedStep, caller: Caller) -> None:
    if step.state == "error":
        caller.error(step.answer)
    else:
        caller.result(step.answer)


def _given_up(name: str) -> DeadlineExceededError:
    return DeadlineExceededError(f"cannot finish replaying step {name}: its caller gave it up")
