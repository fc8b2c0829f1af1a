"""What is read out of the store piece by piece, to a caller under its credit.

The pieces come from a blocking generator, which runs in a thread of the call's own only while the next ones are made: a
caller that does not read costs an idle thread, and memory for one gathering.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec

from dsec.bus import Caller, as_dsec_error, encode_error
from dsec.commandlog.flow import Flow
from dsec.store.threads import ended
from libdsec.protocol.errors import CapacityError
from libdsec.protocol.frames import DATA_CHUNK, STDOUT

from .tasks import given_up

if TYPE_CHECKING:
    from .edge import Edge

MAX_AT_ONCE = 8
"""Of a node: each holds the names of its images in memory."""

GATHERED = 1024 * 1024

Tick = Callable[[], None]
Pieces = Generator[bytes | memoryview, None, None]
Work = Callable[["Stream"], Coroutine[Any, Any, msgspec.Struct]]


class GoneError(Exception):
    """Ends a generator from inside its tick; goes nowhere else."""


class Stream:
    """A caller and what it gets on stream 2."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._over = False
        # a thread of its own: those that the loop has are few, and for what is over soon
        self._thread = ThreadPoolExecutor(1, "dsec-image")

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def tick(self) -> None:
        """For the generator: raises when nobody wants more of it."""
        if self._over or self._flow.gone:
            raise GoneError

    async def send(self, pieces: Pieces) -> None:
        """All of `pieces`.

        :raises GoneError: the caller has gone.
        """
        try:
            while gathered := await self._in_thread(_gather, pieces):
                for start in range(0, len(gathered), DATA_CHUNK):
                    if not await self._flow.send(STDOUT, gathered[start : start + DATA_CHUNK]):
                        raise GoneError
        finally:
            await self._in_thread(pieces.close)

    async def send_frames(self, frames: Generator[bytes, None, None]) -> None:
        """Each of `frames` as one DATA.

        :raises GoneError: the caller has gone.
        """
        try:
            while (frame := await self._in_thread(_next, frames)) is not None:
                if not await self._flow.send(STDOUT, frame):
                    raise GoneError
        finally:
            await self._in_thread(frames.close)

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """A cancel waits for the thread, which ends at its next tick: a generator that runs cannot be closed."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._over = True
            await ended(running)
            raise


def stream(edge: Edge, caller: Caller, doing: str, work: Work) -> Flow:
    """Answer a call by what `work` returns, when it has sent what it had to."""
    flow = Flow(caller)
    edge.spawn(_answered(edge, flow, doing, work))
    return flow


async def _answered(edge: Edge, flow: Flow, doing: str, work: Work) -> None:
    if edge.image_streams >= MAX_AT_ONCE:
        refusal = f"cannot begin {doing}: {MAX_AT_ONCE} images are read out already; try again when one is done"
        flow.caller.error(encode_error(CapacityError(refusal, limit=MAX_AT_ONCE)))
        return
    edge.image_streams += 1
    try:
        with closing(Stream(flow)) as stream:
            answer = await work(stream)
    except (asyncio.CancelledError, GoneError) as error:
        flow.caller.error(encode_error(given_up(edge, doing)))
        if isinstance(error, asyncio.CancelledError):
            raise
    except Exception as error:
        flow.caller.error(encode_error(as_dsec_error(error, f"finish {doing}")))
    else:
        flow.caller.result(_encode(answer))
    finally:
        edge.image_streams -= 1


def _gather(pieces: Iterable[bytes | memoryview]) -> bytes:
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        if len(gathered) >= GATHERED:
            break
    return bytes(gathered)


def _next(frames: Generator[bytes, None, None]) -> bytes | None:
    return next(frames, None)


_encode = msgspec.msgpack.Encoder().encode
