"""log.read and log.output: answers from what is recorded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from dsec.bus import Answerer, Caller, as_dsec_error, encode_error
from libdsec.protocol.errors import DeadlineExceededError, NotFoundError, QuotaExceededError, UnavailableError
from libdsec.protocol.frames import STDOUT
from libdsec.protocol.steps import (
    LogOutputRequest,
    LogReadAnswer,
    LogReadRequest,
    OutputRecord,
    Step,
    details,
    step_name,
)

from .flow import Flow
from .pages import Filter, Page, before_last, read_one, read_page, read_some
from .playback import Spawn, send_output

if TYPE_CHECKING:
    from .log import CommandLog

MAX_BEHIND = 65_536
"""Steps that end while a follower does not read; of more it has to begin again."""

_SOME = 256

_encode = msgspec.msgpack.Encoder().encode


def read_log(log: CommandLog, asked: LogReadRequest, caller: Caller, spawn: Spawn) -> Answerer:
    """Arrays of steps, then `LogReadAnswer`. A scope that is not known has an empty log. A CANCEL ends it with what
    was sent; with `follow` nothing else does."""
    flow = Flow(caller)
    spawn(_Reading(log, asked, flow).run())
    return flow


def read_output(log: CommandLog, asked: LogOutputRequest, caller: Caller, spawn: Spawn) -> Answerer:
    """The output of one step as DATA, then the step. Of one that runs, or whose output is not recorded, the step
    alone."""
    flow = Flow(caller)
    spawn(_read_output(log, asked, flow))
    return flow


class _Reading:
    """One log.read."""

    def __init__(self, log: CommandLog, asked: LogReadRequest, flow: Flow) -> None:
        self._log = log
        self._asked = asked
        self._flow = flow
        self._steps = 0
        self._ended: set[int] = set()
        """Steps that have ended since this follows, and were not sent since."""

    async def run(self) -> None:
        unsubscribe = self._log.subscribe(self._asked.scope, self._on_end) if self._asked.follow else None
        try:
            await self._send()
        except asyncio.CancelledError:
            self._flow.caller.error(encode_error(_ending(self._asked.scope)))
            raise
        except Exception as error:
            self._flow.caller.error(encode_error(as_dsec_error(error, f"read the log of {self._asked.scope}")))
        finally:
            if unsubscribe is not None:
                unsubscribe()

    def _on_end(self, seq: int) -> None:
        if seq <= self._asked.after:
            return
        if len(self._ended) <= MAX_BEHIND:
            self._ended.add(seq)
        self._flow.wake()

    async def _send(self) -> None:
        asked = self._asked
        scope_id = self._log.scope_id(asked.scope)
        if scope_id is not None:
            wanted = Filter(scope_id, asked.track, asked.sandbox, asked.requests)
            await self._send_recorded(wanted)
            if asked.follow:
                await self._follow(wanted)
        answer = LogReadAnswer(self._steps, self._log.count(asked.scope))
        self._flow.caller.result(_encode(answer))

    async def _send_recorded(self, wanted: Filter) -> None:
        asked, journal = self._asked, self._log.journal
        after = asked.after
        if asked.last and asked.limit:
            after = max(after, await journal.read(lambda database: before_last(database, wanted, asked.limit)))
        more = True
        while more:
            left = asked.limit - self._steps if asked.limit else 0
            start = after
            page = await journal.read(lambda database: read_page(database, wanted, start, left))  # noqa: B023
            if not await self._send_page(page):
                return
            after, more = page.last, page.more

    async def _follow(self, wanted: Filter) -> None:
        """Each step when it has ended, until the caller has had enough."""
        limit = 0 if self._asked.last else self._asked.limit
        while not self._flow.gone and not (limit and self._steps >= limit):
            if not self._ended:
                await self._flow.wait()
                continue
            if len(self._ended) > MAX_BEHIND:
                raise QuotaExceededError(
                    f"cannot follow the log of {self._asked.scope} any longer: more than {MAX_BEHIND} steps have ended "
                    "that were not read; read on from the last seq that came",
                    scope=self._asked.scope,
                    limit=MAX_BEHIND,
                )
            some = sorted(self._ended)[: min(_SOME, limit - self._steps) if limit else _SOME]
            self._ended.difference_update(some)
            page = await self._log.journal.read(lambda database: read_some(database, wanted, some))  # noqa: B023
            await self._send_page(page)

    async def _send_page(self, page: Page) -> bool:
        self._ended -= page.ended
        self._steps += page.steps
        for frame in page.frames:
            if not await self._flow.send(STDOUT, frame):
                return False
        return True


async def _read_output(log: CommandLog, asked: LogOutputRequest, flow: Flow) -> None:
    name = step_name(asked.track, asked.n)
    try:
        recorded = log.recorded(asked.scope, asked.track, asked.n)
        step = await _find(log, asked)
        if recorded is None and step.state in ("result", "error"):
            # it has ended between the two looks; of one that runs the step alone is told
            recorded = log.recorded(asked.scope, asked.track, asked.n)
        if recorded is not None and not await send_output(log, recorded, flow):
            raise DeadlineExceededError(f"cannot finish the output of step {name}: its caller gave it up")
        flow.caller.result(_encode(step))
    except asyncio.CancelledError:
        flow.caller.error(encode_error(_ending(asked.scope)))
        raise
    except Exception as error:
        flow.caller.error(encode_error(as_dsec_error(error, f"read the output of step {name}")))


async def _find(log: CommandLog, asked: LogOutputRequest) -> Step:
    """:raises NotFoundError: there is no such step."""
    scope_id = log.scope_id(asked.scope)
    step = None
    if scope_id is not None:
        step = await log.journal.read(lambda database: read_one(database, scope_id, asked.track, asked.n))
    if step is None:
        raise NotFoundError(
            f"cannot find step {step_name(asked.track, asked.n)} in the log of {asked.scope}: `dsec log` lists what is "
            "recorded",
            **details(asked.scope, asked.track, asked.n),
        )
    return msgspec.structs.replace(
        step, stdout=OutputRecord(step.stdout.size), stderr=OutputRecord(step.stderr.size), request=msgspec.Raw(b"\xc0")
    )


def _ending(scope: str) -> UnavailableError:
    return UnavailableError(f"cannot go on reading the log of {scope}: the server ends", closing=True)
