"""One rollout: create, prepare, act, grade, stop, each timed, and a sandbox given back whatever happens.

An interruption (Ctrl-C) may come anywhere. It cuts the agent and the grading short, but never a create or a stop: those
end by themselves or by their deadline, so that no sandbox is made that nobody knows of.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Protocol, TypeVar

import msgspec

from dsec.environments import Environment, Task
from libdsec import DSecClient, DSecContainerRunArgs, ExecResult, OutputLimit, Sandbox
from libdsec.protocol.errors import DSecError, Retry

from .agents import Agent, AgentFailedError
from .outcome import Fault, Outcome, Result, Span, Stage

T = TypeVar("T")

ATTEMPTS = 6
BACKOFF_S = 0.1
CREATE_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
OUTPUT = OutputLimit(4096, 4096)
"""Of each output of a grading command, what the report keeps."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What all rollouts of a run share."""

    image: str
    run_id: str
    timeout_s: float
    """Of the grading command."""
    agent_timeout_s: float
    memory_mb: int = 512


class InterruptedRunError(Exception):
    """The run was told to end while this rollout was under way."""


class Interrupt:
    """Tells all rollouts of a run to end, at once and without a task for each."""

    def __init__(self) -> None:
        self.is_set = False
        self._scopes: set[asyncio.Timeout] = set()

    def set(self) -> None:
        self.is_set = True
        for scope in self._scopes:
            scope.reschedule(0)

    @contextlib.asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        """:raises InterruptedRunError: set before or while the body ran."""
        if self.is_set:
            raise InterruptedRunError
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                self._scopes.add(timeout)
                try:
                    yield
                finally:
                    self._scopes.discard(timeout)
        except TimeoutError:
            if timeout.expired():
                raise InterruptedRunError from None
            raise


class Watcher(Protocol):
    """Who looks on. Called in the event loop, must not block."""

    def began(self, task: str) -> None: ...
    def created(self, task: str) -> None: ...
    def ended(self, outcome: Outcome) -> None: ...


async def retried(
    call: Callable[[], Awaitable[T]], safe: frozenset[Retry], pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> tuple[T, int]:
    """The call's answer and how often it was tried; again only after errors whose own word is in `safe`.

    :raises DSecError: the last one; its `details` say the attempts.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await call(), attempt
        except DSecError as error:
            if error.retry not in safe or attempt == ATTEMPTS:
                error.details = {**error.details, "attempts": attempt}
                raise
        await pause(BACKOFF_S * 2 ** (attempt - 1))
    raise AssertionError("unreachable")


_CREATE_AGAIN: frozenset[Retry] = frozenset({"same_request", "elsewhere"})
_COMMAND_AGAIN: frozenset[Retry] = frozenset({"same_request"})


class Rollout:
    """One task's way through its stages. Use once: `outcome = await Rollout(...).run()`."""

    def __init__(
        self,
        client: DSecClient,
        environment: Environment,
        agent: Agent,
        task: Task,
        settings: Settings,
        interrupt: Interrupt,
        clock: Callable[[], float],
        watcher: Watcher,
    ) -> None:
        self._client, self._environment, self._agent, self._task = client, environment, agent, task
        self._settings, self._interrupt, self._clock, self._watcher = settings, interrupt, clock, watcher
        self._spans: list[Span] = []
        self._stage: Stage = "create"
        self._attempts = 1
        self._answer = ""

    async def run(self) -> Outcome:
        """Never raises but for bugs and cancellation; a sandbox that was made is stopped in any case."""
        self._watcher.began(self._task.id)
        sandbox: Sandbox | None = None
        outcome: Outcome | None = None
        try:
            with self._timed("create"):
                sandbox = await self._create()
            self._watcher.created(self._task.id)
            outcome = await self._judged(sandbox)
        except InterruptedRunError:
            outcome = self._outcome("not_run")
        except (DSecError, AgentFailedError) as error:
            outcome = self._outcome("error", fault=Fault(error.code, str(error), self._stage))
        finally:
            left = None if sandbox is None else await self._stop(sandbox)
        outcome = msgspec.structs.replace(
            outcome,
            sandbox=None if sandbox is None else sandbox.id,
            spans=tuple(self._spans),
            attempts=self._attempts,
            left_behind=left,
        )
        self._watcher.ended(outcome)
        return outcome

    @contextlib.contextmanager
    def _timed(self, stage: Stage) -> Iterator[None]:
        self._stage = stage
        start = self._clock()
        try:
            yield
        finally:
            self._spans.append(Span(stage, start, self._clock()))

    async def _create(self) -> Sandbox:
        settings = self._settings
        args = DSecContainerRunArgs(
            container_image=settings.image,
            memory_limit_mb=settings.memory_mb,
            # outlives any stage, and ends what a killed runner leaves
            ttl_running_stop=settings.timeout_s + settings.agent_timeout_s + 120,
            labels={"rollout": settings.run_id, "task": self._task.id},
        )
        try:
            sandbox, self._attempts = await retried(
                lambda: self._client.run_container(args, timeout=CREATE_TIMEOUT_S), _CREATE_AGAIN, self._pause
            )
        except DSecError as error:
            self._attempts = int(error.details.get("attempts", 1))
            raise
        return sandbox

    async def _pause(self, seconds: float) -> None:
        async with self._interrupt.scope():
            await asyncio.sleep(seconds)

    async def _judged(self, sandbox: Sandbox) -> Outcome:
        async with self._interrupt.scope():
            if self._task.files:
                with self._timed("prepare"):
                    for path, content in self._task.files.items():
                        await sandbox.files.write(path, content, parents=True)
            with self._timed("act"):
                self._answer = await self._act(sandbox)
            with self._timed("grade"):
                grading = self._environment.grading(self._task, self._answer, self._settings.timeout_s)
                result, _ = await retried(
                    lambda: sandbox.run(
                        grading.argv, stdin=grading.stdin, timeout=grading.timeout_s, cwd="/", user="root", limit=OUTPUT
                    ),
                    _COMMAND_AGAIN,
                )
        return self._outcome("passed" if grading.passed(result) else "failed", result)

    async def _act(self, sandbox: Sandbox) -> str:
        try:
            async with asyncio.timeout(self._settings.agent_timeout_s):
                return await self._agent.act(self._task, sandbox)
        except TimeoutError:
            limit = self._settings.agent_timeout_s
            raise AgentFailedError(f"cannot wait for the agent any longer than {limit:g} s") from None
        except (DSecError, AgentFailedError):
            raise
        except Exception as error:
            # an agent is the user's own code: its bug ends this rollout, not the run
            raise AgentFailedError(f"cannot go on: the agent raised {type(error).__name__}: {error}") from error

    async def _stop(self, sandbox: Sandbox) -> Fault | None:
        with self._timed("stop"):
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await sandbox.stop()
            except DSecError as error:
                return Fault(error.code, str(error), "stop")
            except TimeoutError:
                return Fault("deadline_exceeded", f"cannot stop {sandbox.id} in {STOP_TIMEOUT_S:g} s", "stop")
        return None

    def _outcome(self, result: Result, ended: ExecResult | None = None, fault: Fault | None = None) -> Outcome:
        outcome = Outcome(self._task.id, result, answer=self._answer, fault=fault)
        if ended is None:
            return outcome
        return msgspec.structs.replace(
            outcome, how=ended.how(), stdout=ended.stdout, stderr=ended.stderr, truncated=ended.truncated
        )
