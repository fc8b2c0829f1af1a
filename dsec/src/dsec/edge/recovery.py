"""What an earlier edge left, and what becomes of it.

    recorded state          PID 1 is there          it is gone
    ----------------------  ----------------------  ------------------------------------------
    running                 adopt: running          failed (`lost`): it ended while nobody looked
    pausing, resuming       adopt: paused, resume   failed (`lost`)
    paused                  adopt: paused           failed (`lost`)
    stopping                finish: stopped         finish: stopped
    stopped, failed         (swept)                 remember
    nothing                 sweep                   sweep its control group, upper, layers

A PID 1 is there when the fork server has it under the sandbox's id with the recorded pid and start time. What cannot be
adopted although it is there has failed with that as its cause, and is swept.

    a step that ran                               becomes
    --------------------------------------------  ---------------------------------------------------
    in a sandbox, which names it                  open again: it answers when it ends
    in a sandbox, which does not name it          no step: it never arrived, and may be asked for again
    ... but a file's read, or a write cut short   no step: it may be asked for again
    ... but its input was cut short, or a stream  canceled; unknown: what it did so far stands
    in a sandbox that has failed                  unknown: it may have run
    of the edge's own (create, pause, stop, ...)  no step: whoever asks again gets it done
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from dsec import faults
from dsec.bus import Answerer, Caller, Unheard, as_dsec_error, encode_error
from dsec.commandlog import OpenStep
from dsec.drivers.base import End
from libdsec.protocol.errors import DSecError, InvalidArgumentError, OutcomeUnknownError, SandboxFailedError
from libdsec.protocol.lifecycle import State

from . import ending, pausing
from .relay import Relay
from .resolve import make_defaults, timeout_ms
from .rows import Record, restored
from .sandbox import PAUSES, Sandbox
from .verbs.create import order_of
from .verbs.files import READS, is_harmless

if TYPE_CHECKING:
    from .edge import Edge

AT_ONCE = 32
"""Adoptions under way."""

ADOPT_TIMEOUT_S = 30.0
_RELAYED = ("exec", "session.", "file.")

_log = structlog.get_logger("dsec.recovery")


class _Asked(msgspec.Struct):
    """What counts of a recorded request here."""

    timeout_s: float | None = None
    append: bool = False

    @property
    def timeout_ms(self) -> int:
        """Of the command; 0 is none."""
        try:
            return timeout_ms(self.timeout_s)
        except InvalidArgumentError:
            return 0  # it would have been refused: the sandbox does not have it


class _Unsettled(NamedTuple):
    step: OpenStep
    request: _Asked


class _News(msgspec.Struct):
    """EVENT of a call that a sandbox knows."""

    lacks_input: bool = False


class _Adopted(Unheard):
    """The caller of a call whose client has gone with an earlier edge."""

    cut: Callable[[], None] = staticmethod(lambda: None)

    def event(self, payload: bytes) -> None:
        try:
            news = _decode_news(payload)
        except msgspec.DecodeError:
            return  # other news, for a reader that has gone
        if news.lacks_input:
            self.cut()


_decode_asked = msgspec.msgpack.Decoder(_Asked).decode
_decode_news = msgspec.msgpack.Decoder(_News).decode


class Recovery:
    """Runs once, before the edge takes calls; paused sandboxes settle their calls when they resume."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._unsettled: dict[str, dict[str, _Unsettled]] = {}
        """Sandbox → key → a step that ran in it when the earlier edge died, and that it has not named yet."""

    async def run(self) -> None:
        edge = self._edge
        found = [(self._restore(name, record), record) for name, record in edge.rows.load(edge.node.kept_final)]
        steps = edge.log.running()
        for step in steps:
            if step.method.startswith(_RELAYED):
                self._unsettled.setdefault(step.sandbox, {})[step.key] = _Unsettled(step, _asked(step))
            else:
                step.withdraw(_nothing)
        turns = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as adoptions:
            for sandbox, record in found:
                if not sandbox.final:
                    adoptions.create_task(self._recover(sandbox, record, turns))
        for driver in edge.drivers.values():
            await driver.sweep()
        paused = {sandbox.id for sandbox, _ in found if sandbox.paused}
        for name in self._unsettled.keys() - paused:
            self.forget(name)
        if found or steps:
            _log.info("recovered", sandboxes=len(edge.registry), steps=len(steps))

    def settle(self, sandbox: Sandbox) -> None:
        """It has named every call that it knows: the others never reached it."""
        for step, _ in self._unsettled.pop(sandbox.id, {}).values():
            step.withdraw(_nothing)

    def _restore(self, name: str, record: Record) -> Sandbox:
        edge = self._edge
        sandbox = restored(name, record, node=edge.node.name, now=edge.clock.now(), monotonic=edge.clock.monotonic())
        sandbox.defaults = make_defaults(record.spec, record.config)
        edge.registry.restore(sandbox)
        if not sandbox.final:
            sandbox.log.add(edge.clock.now(), "recovered", {"state": str(sandbox.state)})
        return sandbox

    async def _recover(self, sandbox: Sandbox, record: Record, turns: asyncio.Semaphore) -> None:
        """Adopted, or final, afterwards."""
        async with turns:
            if sandbox.state is State.STOPPING:
                self._finish_stop(sandbox)
                return
            try:
                await self._adopt(sandbox, record)
            except Exception as error:
                self._lost(sandbox, as_dsec_error(error, f"adopt sandbox {sandbox.id}"))

    async def _adopt(self, sandbox: Sandbox, record: Record) -> None:
        edge = self._edge
        driver = edge.driver(sandbox.spec.backend)
        slot = edge.slots.adopt(record.slot, record.id_base)
        sandbox.slot = slot
        edge.admission.adopt(sandbox.spec.requests)
        was_paused = sandbox.state in PAUSES

        def on_end(end: End) -> None:
            ending.failed(edge, sandbox, end)

        def on_known(tag: str, running: bool, answerer: Answerer) -> Caller | None:
            return self._known(sandbox, tag, running, answerer)

        faults.point("recovery.adopting")
        sandbox.instance = await driver.adopt(
            order_of(sandbox, slot, ADOPT_TIMEOUT_S), record.kept, on_end, on_known, paused=was_paused
        )
        if sandbox.final:
            # it ended between its last answer and now
            ending.clean(edge, sandbox, self._unknown(sandbox))
            return
        if not was_paused:
            self.settle(sandbox)
        edge.watch(sandbox)
        if sandbox.state in (State.PAUSING, State.RESUMING):
            # whichever it was, nobody was told that it is done; it is brought to where a call would bring it
            sandbox.move(sandbox.state, State.PAUSED)
            edge.spawn(self._resume(sandbox))

    async def _resume(self, sandbox: Sandbox) -> None:
        try:
            await pausing.resume(self._edge, sandbox, "recovery")
        except DSecError as error:
            _log.warning("sandbox stays paused", sandbox=sandbox.id, error=str(error))

    def _known(self, sandbox: Sandbox, tag: str, running: bool, answerer: Answerer) -> Caller | None:
        """Who hears the answer of a call that an earlier edge sent. Tags come from the sandbox's PID 1: only one that
        names a step of this very sandbox is believed."""
        unsettled = self._unsettled.get(sandbox.id, {}).pop(tag, None)
        if unsettled is None:
            return None
        step, request = unsettled
        if step.method in READS:
            # what it has given so far went with the earlier edge, and reading it again does no harm
            answerer.cancel()
            step.withdraw(_nothing)
            return None
        adopted = _Adopted(answerer)
        harmless = is_harmless(step.method, request)
        relay = Relay(self._edge, sandbox, adopted, step, step.method, None, harmless=harmless)
        adopted.cut = relay.feed.cut
        relay.feed.open(answerer)
        relay.limit(request.timeout_ms)
        if step.opaque and running:
            relay.feed.abandon()
        return relay

    def _finish_stop(self, sandbox: Sandbox) -> None:
        sandbox.move(State.STOPPING, State.STOPPED)
        sandbox.log.add(self._edge.clock.now(), "stopped", {"cause": sandbox.cause})
        self._end(sandbox)

    def _lost(self, sandbox: Sandbox, error: DSecError) -> None:
        """It has ended, or cannot be reached: what is left of it is swept."""
        edge = self._edge
        if not sandbox.final:  # else its end was told while it was being adopted
            sandbox.move(sandbox.state, State.FAILED)
            sandbox.cause = "lost" if isinstance(error, SandboxFailedError) else "not_adopted"
            sandbox.message = str(error)
            sandbox.error = SandboxFailedError(
                f"cannot use sandbox {sandbox.id}: {error}", sandbox=sandbox.id, cause=sandbox.cause
            )
            sandbox.log.add(edge.clock.now(), "failed", {"cause": sandbox.cause, "message": sandbox.message})
        _log.warning("sandbox lost", sandbox=sandbox.id, error=str(error))
        for relay in list(sandbox.open):
            relay.fail(self._unknown(sandbox))
        self._end(sandbox)

    def _end(self, sandbox: Sandbox) -> None:
        self._edge.give_back(sandbox)
        self._edge.finish(sandbox)

    def forget(self, name: str) -> None:
        """Steps that ran in a sandbox that is no more: whether they were done nobody can tell."""
        for step, _ in self._unsettled.pop(name, {}).values():
            error = OutcomeUnknownError(
                f"cannot tell how step {step.track}#{step.n} ended: its sandbox {name} ended before it could say so",
                sandbox=name,
            )
            step.end(
                state="unknown", answer=encode_error(error), stdout=(), stderr=(), then=_nothing, failed=_unrecorded
            )

    def _unknown(self, sandbox: Sandbox) -> DSecError:
        return OutcomeUnknownError(
            f"cannot tell how a call in sandbox {sandbox.id} ended: the sandbox was lost", sandbox=sandbox.id
        )


def _asked(step: OpenStep) -> _Asked:
    try:
        return _decode_asked(step.request())
    except msgspec.DecodeError:
        return _Asked()


def _nothing() -> None: ...


def _unrecorded(error: DSecError) -> None:
    _log.error("an unknown outcome could not be recorded", error=str(error))
