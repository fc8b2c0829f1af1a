"""Calls as steps of a command log: begun in the log, then sent; answered from the log when they are there already.

Every verb that is a step goes through here: those that run in a sandbox by `run_in_sandbox`, those that change the
sandbox itself by `run_as_task`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dsec import faults
from dsec.bus import Answerer, Caller, Request, as_dsec_error, encode_error
from dsec.commandlog import Begun, Joined, OpenStep, Outcome, play
from libdsec.protocol.errors import DSecError, OutcomeUnknownError, UnavailableError
from libdsec.protocol.lifecycle import Operation
from libdsec.protocol.steps import CLI, KEY_PREFIX, OTHER, StepTag

from . import pausing
from .relay import Relay
from .resolve import Defaults
from .sandbox import Sandbox
from .tasks import ANSWERED, Nothing, TaskCall, answered, given_up, outcome_of_commit

if TYPE_CHECKING:
    from .edge import Edge

Work = Callable[[OpenStep], Coroutine[Any, Any, msgspec.Struct]]

_encode = msgspec.msgpack.Encoder().encode


class Plan(NamedTuple):
    """A call that runs in a sandbox."""

    method: str
    """As init knows it."""
    operation: Operation
    doing: str
    """In words, for refusals."""
    resolve: Callable[[Defaults], Any]
    """The arguments for init. May raise."""
    opaque: str = ""
    """Why it cannot be replayed, in words; such a call ends with its client."""
    gathers: bool = False
    """It has input that the client sends of itself and to its end."""
    harmless: bool = False
    """Begun and canceled, it may be done again from its beginning."""
    event: str = ""
    detail: dict[str, Any] | None = None


def run_in_sandbox(
    edge: Edge, sandbox: Sandbox, request: Request, asked: msgspec.Struct, caller: Caller, plan: Plan
) -> Answerer:
    """Begin the step, send the call once it is written down, record its end, then tell the client."""
    step = _begin(edge, sandbox.scope, sandbox, request, asked, caller, plan.opaque)
    if not isinstance(step, OpenStep):
        if isinstance(step, _JoinedCall) and sandbox.paused:
            # what it has joined stands still, and nobody else may ever ask
            edge.spawn(pausing.wake(edge, sandbox))
        return step
    relay = Relay(edge, sandbox, caller, step, plan.event, plan.detail, gathers=plan.gathers, harmless=plan.harmless)
    try:
        sandbox.require(plan.operation, plan.doing)
        args = plan.resolve(sandbox.running_defaults)
    except Exception as error:
        relay.fail(as_dsec_error(error, f"answer {request.method}"))
        return relay.feed
    relay.limit(getattr(args, "timeout_ms", 0))

    def send() -> None:
        _send(edge, sandbox, relay, step, plan, args)

    step.when_begun(lambda: relay.feed.when_gathered(send), relay.refuse)
    return relay.feed


def _send(edge: Edge, sandbox: Sandbox, relay: Relay, step: OpenStep, plan: Plan, args: Any) -> None:
    if relay.done:
        return  # given up meanwhile
    faults.point("step.begun")
    if sandbox.paused:
        edge.spawn(_wake_and_send(edge, sandbox, relay, step, plan, args))
        return
    try:
        instance = sandbox.require(plan.operation, plan.doing)
        answerer = instance.call(plan.method, args, relay, streaming=bool(plan.opaque), tag=step.key)
    except Exception as error:
        relay.fail(as_dsec_error(error, f"send {plan.method}"))
        return
    faults.point("step.sent")
    relay.feed.open(answerer)
    step.take_digest()


async def _wake_and_send(edge: Edge, sandbox: Sandbox, relay: Relay, step: OpenStep, plan: Plan, args: Any) -> None:
    try:
        while sandbox.paused:
            await pausing.resume(edge, sandbox, "call")
    except Exception as error:
        # nothing was sent: whoever asked may ask again
        problem = as_dsec_error(error, f"resume sandbox {sandbox.id}")
        if sandbox.paused:
            problem = UnavailableError(f"cannot {plan.doing} in sandbox {sandbox.id}: {problem}", sandbox=sandbox.id)
        relay.fail(problem)
        return
    _send(edge, sandbox, relay, step, plan, args)


def run_as_task(
    edge: Edge,
    scope: str,
    sandbox: Sandbox | None,
    request: Request,
    asked: msgspec.Struct,
    caller: Caller,
    work: Work,
    *,
    made: str = "",
    even_unrecorded: bool = False,
) -> Answerer:
    """A step of the edge's own: `work` does it and gives its answer. It must be such that doing it twice does no
    harm: an edge that dies in it forgets the step, and the caller asks again. `made`: the sandbox that it makes.
    `even_unrecorded`: do it, and tell of it, also when the log cannot be written, since it is what makes room."""
    method = request.method

    def instead(step: OpenStep) -> Answerer:
        return TaskCall(edge.spawn(answered(edge, work(step), caller, method)))

    if even_unrecorded and request.step is not None:
        request = request._replace(step=msgspec.structs.replace(request.step, again=True))
    step = _begin(edge, scope, sandbox, request, asked, caller, made=made, instead=instead if even_unrecorded else None)
    if not isinstance(step, OpenStep):
        return step
    begun, then, failed = outcome_of_commit()
    step.when_begun(then, failed)
    return TaskCall(edge.spawn(_run(edge, step, begun, work, caller, method, even_unrecorded)))


async def _run(
    edge: Edge,
    step: OpenStep,
    begun: asyncio.Future[None],
    work: Work,
    caller: Caller,
    method: str,
    even_unrecorded: bool,
) -> None:
    try:
        await begun
    except asyncio.CancelledError:
        refusal = encode_error(given_up(edge, method))
        step.withdraw(lambda: caller.error(refusal))
        raise
    except DSecError as error:
        # it is not in the log, and nothing was done
        if even_unrecorded:
            await answered(edge, work(step), caller, method)
        else:
            caller.error(encode_error(error))
        return
    try:
        answer = _encode(await work(step))
    except asyncio.CancelledError:
        _refuse(step, given_up(edge, method), caller)
        raise
    except Exception as error:
        _refuse(step, as_dsec_error(error, f"finish {method}"), caller)
    else:
        _end(step, "result", answer, lambda: caller.result(answer), caller, even_unrecorded)


def _refuse(step: OpenStep, problem: DSecError, caller: Caller) -> None:
    refusal = encode_error(problem)
    if problem.retry != "never":
        step.withdraw(lambda: caller.error(refusal))
    else:
        _end(step, "error", refusal, lambda: caller.error(refusal), caller)


def _end(
    step: OpenStep,
    state: Any,
    answer: bytes,
    tell: Callable[[], None],
    caller: Caller,
    even_unrecorded: bool = False,
) -> None:
    def failed(error: DSecError) -> None:
        if even_unrecorded:
            tell()
        else:
            caller.error(encode_error(_unrecorded(step, error)))

    step.end(
        state=state,
        answer=answer,
        stdout=[],
        stderr=[],
        then=tell,
        failed=failed,
    )


def _unrecorded(step: OpenStep, error: DSecError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"cannot tell how {step.method} ended: it is over, but could not be recorded: {error}; make room, then look "
        "before repeating it",
        sandbox=step.sandbox,
    )


def _begin(
    edge: Edge,
    scope: str,
    sandbox: Sandbox | None,
    request: Request,
    asked: msgspec.Struct,
    caller: Caller,
    opaque: str = "",
    made: str = "",
    instead: Callable[[OpenStep], Answerer] | None = None,
) -> OpenStep | Answerer:
    """The step, new and open; or the answering end of a call that the log answers. `instead`: what answers a call
    whose step runs already, where its outcome is lost."""
    edge.require_taking(request.method)
    tag = request.step
    if tag is not None:
        fence(edge, scope, sandbox, tag)
    begun = edge.log.begin(
        scope=scope,
        tag=tag,
        sandbox=made if sandbox is None else sandbox.id,
        method=request.method,
        args=asked,
        request=bytes(request.args),
        principal=request.principal,
        opaque=opaque,
    )
    if isinstance(begun, Begun):
        return begun.entry
    if isinstance(begun, Joined):
        return _join(edge, begun.entry, caller, instead)
    if sandbox is not None:
        sandbox.touch(edge.clock.now(), edge.clock.monotonic())
    return play(edge.log, begun.step, caller, edge.spawn)


def _join(
    edge: Edge, running: OpenStep, caller: Caller, instead: Callable[[OpenStep], Answerer] | None = None
) -> Answerer:
    """Another call runs the step: its outcome is the answer to both."""
    end = _JoinedCall()

    def told(outcome: Outcome) -> None:
        if instead is not None and isinstance(outcome, OutcomeUnknownError):
            end.become(instead(running))
        elif isinstance(outcome, DSecError):
            caller.error(encode_error(outcome))
        else:
            end.become(play(edge.log, outcome, caller, edge.spawn))

    running.join(told)
    return end


class _JoinedCall(Nothing):
    """Credit that comes before the outcome does is for its streams."""

    def __init__(self) -> None:
        self._answerer: Answerer = ANSWERED

    def become(self, answerer: Answerer) -> None:
        self._answerer = answerer

    def credit(self, stream: int, amount: int) -> None:
        self._answerer.credit(stream, amount)

    def cancel(self) -> None:
        self._answerer.cancel()

    def abandon(self) -> None:
        self._answerer.abandon()


def fence(edge: Edge, scope: str, sandbox: Sandbox | None, tag: StepTag) -> None:
    """Only the lease's holder says what the next numbered step is; what the edge numbers, and calls by a key, are
    anybody's.

    :raises LeaseLostError: the caller's epoch is not the current one.
    """
    if tag.n == 0 or tag.track in (CLI, OTHER) or tag.track.startswith(KEY_PREFIX):
        return
    own_log = sandbox is not None and sandbox.spec.rollout is None
    edge.leases.fence("sandbox" if own_log else "rollout", scope, tag.epoch)
