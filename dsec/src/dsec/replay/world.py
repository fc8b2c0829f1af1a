"""Fresh sandboxes in which the steps of a log are run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from libdsec.protocol.calls import METHODS, CreateRequest, SandboxRequest
from libdsec.protocol.errors import DSecError, InvalidArgumentError, WireError
from libdsec.protocol.exec import SessionInfo
from libdsec.protocol.frames import STDOUT
from libdsec.protocol.ids import new_token
from libdsec.protocol.spec import SandboxInfo, SandboxSpec
from libdsec.protocol.steps import Step, step_name

from . import facts
from .facts import Facts, Taken
from .plan import takes_input

UNUSED_S = 600.0
"""A replay that was killed leaves sandboxes that nobody uses, and that end by themselves."""

PATIENCE = 10.0
LEAST_PATIENCE_S = 120.0
"""A step may take so many times as long as it did, and at least this."""

AT_ONCE = 1024
"""Steps that run at the same time; a log that had more waits."""

CREATE_GRACE_S = 15.0
STOP_S = 60.0

TRANSIENT = frozenset({"unavailable", "outcome_unknown", "capacity", "admission_rejected", "no_eligible_node", "wire"})
"""Errors that say nothing of the sandbox."""


class Say(Protocol):
    """How a request is said: `libdsec.log.say` with its client."""

    async def __call__(
        self,
        method: str,
        args: msgspec.Struct,
        take: Callable[[int, bytes], None],
        *,
        stdin: bytes | None = None,
        timeout: float,
    ) -> msgspec.Struct:
        """:raises DSecError: the answer was an error."""


class World:
    """Used by `async with`: its sandboxes are stopped at the end, unless they are to be kept."""

    def __init__(self, say: Say, environments: Mapping[str, SandboxSpec], *, keep: bool) -> None:
        """`environments`: of recorded sandboxes that no step creates."""
        self._say = say
        self._environments = environments
        self._keep = keep
        self._sessions: dict[tuple[str, int], int] = {}
        self._made: list[str] = []
        self.sandboxes: dict[str, str] = {}
        """Recorded → fresh."""

    async def run(self, steps: Sequence[Step], tell: Callable[[Step, Facts], None]) -> None:
        """Run the steps, in the order of the log, at once what ran at once; `tell` hears of each as it ends.

        :raises DSecError: a sandbox could not be made, or the server is not there: nothing is known then.
        """
        for sandbox in dict.fromkeys(step.sandbox for step in steps):
            if sandbox in self._environments:
                await self._create(sandbox, self._environments[sandbox], LEAST_PATIENCE_S)
        running: dict[asyncio.Task[None], float] = {}
        try:
            async with asyncio.TaskGroup() as tasks:
                for step in steps:
                    await _until_ended(running, step.began_at)
                    if len(running) >= AT_ONCE:
                        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    ended = step.began_at if step.ended_at is None else step.ended_at
                    running[tasks.create_task(self._one(step, tell))] = ended
        except BaseExceptionGroup as group:
            raise _first(group) from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keep and kind is None:
            return
        failure: DSecError | None = None
        for fresh in self._made:
            try:
                await self._say("sandbox.stop", SandboxRequest(fresh), _nowhere, timeout=STOP_S)
            except DSecError as problem:
                failure = failure or problem  # the others are stopped all the same
        if failure is not None and kind is None:  # the body's own error says more
            raise failure

    async def _one(self, step: Step, tell: Callable[[Step, Facts], None]) -> None:
        out, err = Taken(step.method), Taken(step.method)

        def take(stream: int, piece: bytes) -> None:
            (out if stream == STDOUT else err).take(piece)

        args: Any = msgspec.msgpack.decode(step.request, type=METHODS[step.method][0])
        if isinstance(args, CreateRequest) and step.state == "result":
            answer: msgspec.Struct = await self._create(step.sandbox, args.spec, args.timeout_s)
            tell(step, facts.given(step.method, answer, out, err))
            return
        args = self._moved(step, args)
        try:
            stdin = b"" if takes_input(step) else None
            answer = await self._say(step.method, args, take, stdin=stdin, timeout=_patience(step))
        except DSecError as error:
            if error.code in TRANSIENT:
                raise
            tell(step, facts.of_error(error.body()))
            return
        if isinstance(answer, SessionInfo) and step.state == "result":
            earlier = msgspec.msgpack.decode(step.answer, type=SessionInfo)
            self._sessions[step.sandbox, earlier.session] = answer.session
        if isinstance(args, CreateRequest) and isinstance(answer, SandboxInfo):
            self._made.append(answer.id)  # it could not be made then
        tell(step, facts.given(step.method, answer, out, err))

    async def _create(self, recorded: str, spec: SandboxSpec, timeout: float) -> SandboxInfo:
        """:raises DSecError: whatever the reason: nothing could be said of what follows."""
        request = _fresh(spec, recorded, self._keep, timeout)
        try:
            info = await self._say("sandbox.create", request, _nowhere, timeout=timeout + CREATE_GRACE_S)
        except DSecError as error:
            raise type(error)(
                f"cannot replay: no fresh sandbox for {recorded} ({error.message})", **error.details
            ) from None
        if not isinstance(info, SandboxInfo):
            raise WireError("cannot replay: the answer of sandbox.create is no sandbox")
        self._made.append(info.id)
        self.sandboxes[recorded] = info.id
        return info

    def _moved(self, step: Step, args: Any) -> Any:
        """The request for the fresh sandbox and session.

        :raises InvalidArgumentError: the log does not say how its sandbox was made.
        """
        if isinstance(args, CreateRequest):
            return _fresh(args.spec, "", self._keep, args.timeout_s)
        if step.sandbox not in self.sandboxes:
            raise InvalidArgumentError(
                f"cannot replay step {step_name(step.track, step.n)}: how {step.sandbox} was made is not in the "
                "log; say in which image to run with --image"
            )
        args = msgspec.structs.replace(args, sandbox=self.sandboxes[step.sandbox])
        if hasattr(args, "session"):
            # a session that the log does not open is none here either
            args = msgspec.structs.replace(args, session=self._sessions.get((step.sandbox, args.session), args.session))
        return args


def _fresh(spec: SandboxSpec, recorded: str, keep: bool, timeout: float) -> CreateRequest:
    """The same environment for another sandbox. Its host's name, which a program may print, stays that of the first."""
    own = {"ttl_idle_s": spec.ttl_idle_s if keep else max(UNUSED_S, spec.ttl_idle_s or 0)}
    labels = {"replay": recorded} if recorded else {}
    hostname = spec.hostname or recorded or None
    spec = msgspec.structs.replace(spec, rollout=None, job=None, labels=labels, hostname=hostname, **own)
    return CreateRequest(spec, new_token(), timeout)


def _patience(step: Step) -> float:
    took = max(0.0, (step.ended_at or step.began_at) - step.began_at)
    return max(LEAST_PATIENCE_S, PATIENCE * took)


async def _until_ended(running: dict[asyncio.Task[None], float], moment: float) -> None:
    """Of those that had ended by `moment` in the record."""
    for task in [task for task in running if task.done()]:
        del running[task]
    before = [task for task, ended in running.items() if ended <= moment]
    if before:
        await asyncio.wait(before)
    for task in before:
        del running[task]


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _nowhere(stream: int, piece: bytes) -> None:
    """The answer says it all."""
