"""A sandbox, whatever its backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

from ._changes import read_changes
from ._logged import Logged
from ._results import collected_result
from ._steps.track import Track
from ._timeouts import answer_timeout, checked_timeout
from .files import Files
from .images import SILENCE_S, Progress, telling
from .process import Process
from .protocol.calls import LogEntry, LogRequest, SandboxRequest
from .protocol.environment import LayerKind
from .protocol.errors import DSecError, InvalidArgumentError
from .protocol.exec import ExecRequest, ExecResult, OutputLimit
from .protocol.frames import STDERR, STDOUT
from .protocol.images import Change, PackDiffRequest, PackedDiff, SandboxDiffRequest, ScrubRule
from .protocol.spec import SandboxInfo
from .session import Session

NO_ENV: Mapping[str, str] = {}
_LIMIT = OutputLimit()
_PAUSE_S = 300.0
"""For a pause or resume: a large memory is written to, or read from, a disk."""


class Sandbox(Logged):
    """A handle: it holds the sandbox's id and nothing of its state. As `async with` it stops the sandbox at the end.

    What it does are steps of the sandbox's command log, numbered in the order in which the calls begin. A `key` gives a
    call a place of its own there: said again, by whomever, it returns its recorded outcome and runs nothing.
    """

    def __init__(self, track: Track, sandbox_id: str) -> None:
        super().__init__(track)
        self._scope = track.scope.name
        self.id = sandbox_id
        self.files = Files(track, sandbox_id)

    def __repr__(self) -> str:
        return f"Sandbox({self.id!r})"

    def track(self, name: str) -> Sandbox:
        """The same sandbox on a track of its own, for what runs at the same time as other calls on it.

        A handle made from an id has no numbers, and is the same on every track.
        """
        return Sandbox(self._track.named(name), self.id)

    async def run_shell(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] = NO_ENV,
        user: str | int | None = None,
        stdin: bytes | None = None,
        limit: OutputLimit = _LIMIT,
        shell: str = "/bin/sh",
        key: str | None = None,
    ) -> ExecResult:
        """Run a command line with the image's shell and wait for its end. As `run`."""
        return await self.run(
            (shell, "-c", command), timeout=timeout, cwd=cwd, env=env, user=user, stdin=stdin, limit=limit, key=key
        )

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] = NO_ENV,
        user: str | int | None = None,
        stdin: bytes | None = None,
        limit: OutputLimit = _LIMIT,
        key: str | None = None,
    ) -> ExecResult:
        """Run a program and wait for its end.

        However it ended is a result, also when it failed, was killed for memory, or outlived `timeout` seconds (then it
        and all it started are killed, and the result has what was printed). Of each output the first `limit.head` and
        the last `limit.tail` bytes are kept.
        :raises CommandNotStartedError: it never ran: no such program, user or directory.
        :raises SandboxNotFoundError: the sandbox was never there or is forgotten.
        :raises SandboxStateError: the sandbox does not run.
        :raises OutcomeUnknownError: the connection was lost for good, or the node died in it; it may have run.
        """
        request = ExecRequest(
            self.id,
            _argv(argv),
            env if type(env) is dict else dict(env),
            cwd,
            None if user is None else str(user),
            checked_timeout(timeout),
            stdin is not None,
            False,
            limit,
        )
        answer = await self._track.collect(
            "exec",
            request,
            timeout=answer_timeout(timeout),
            stdin=stdin,
            bound=limit.head + limit.tail,
            key=key,
        )
        return collected_result(answer)

    async def exec_stream(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] = NO_ENV,
        user: str | int | None = None,
        stdin: bool = False,
        pty: bool = False,
        rows: int = 24,
        cols: int = 80,
    ) -> Process:
        """Start a program and speak with it while it runs. `pty` gives it a terminal, all of whose output is stdout.

        Whether it could be started is told by its streams and by `wait`. It cannot be replayed from a command log.
        """
        request = ExecRequest(
            self.id,
            _argv(argv),
            dict(env),
            cwd,
            None if user is None else str(user),
            checked_timeout(timeout),
            stdin or pty,
            True,
            _LIMIT,
            pty,
            rows,
            cols,
        )
        return Process(await self._track.stream("exec", request, (STDOUT, STDERR)))

    def session(
        self,
        *,
        shell: Sequence[str] = ("/bin/sh",),
        env: Mapping[str, str] = NO_ENV,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> Session:
        """A persistent shell, opened by `async with` or `open()`."""
        return Session(self._track, self.id, shell, env, cwd, user)

    async def info(self) -> SandboxInfo:
        """The sandbox as its node knows it now."""
        info: SandboxInfo = await self._track.call("sandbox.inspect", SandboxRequest(self.id), repeatable=True)
        return info

    async def logs(self, *, limit: int = 1000) -> tuple[LogEntry, ...]:
        """What happened to it, oldest first: the last `limit` entries."""
        answer = await self._track.channel.call("sandbox.logs", LogRequest(self.id, limit), repeatable=True)
        entries: tuple[LogEntry, ...] = answer.entries
        return entries

    async def pause(self) -> SandboxInfo:
        """Freeze it and give back its memory. Whatever is asked of it next resumes it first. Again is fine."""
        info: SandboxInfo = await self._track.call(
            "sandbox.pause", SandboxRequest(self.id), timeout=_PAUSE_S, repeatable=True
        )
        return info

    async def resume(self) -> SandboxInfo:
        """Let it go on after a pause. Again is fine."""
        info: SandboxInfo = await self._track.call(
            "sandbox.resume", SandboxRequest(self.id), timeout=_PAUSE_S, repeatable=True
        )
        return info

    async def pack_diff(
        self,
        ref: str,
        kind: LayerKind = "workspace",
        *,
        scrub: bool = True,
        rules: Sequence[ScrubRule] = (),
        publish: bool = False,
        comment: str = "",
        progress: Progress | None = None,
        key: str | None = None,
    ) -> PackedDiff:
        """Make an image of what was written in it: a `workspace` (its workspace's layers and the diff), a `toolkit`
        (the diff alone) or a `base` (everything below, and the diff). The sandbox stands still while that is read and
        goes on afterwards; one that is paused stays so.

        Caches, histories, logs and keys are left out (`scrub`; docs/packing.md has the rules) and so is what `rules`
        name; the answer lists it. `publish` puts the image into the node's shared store too. `comment` is what the
        image's history says of the new layer.
        :raises AlreadyExistsError: the name is taken; published images never change.
        :raises InvalidArgumentError: something in it cannot be in an image (says which path), or a rule is none.
        :raises SandboxStateError, SandboxFailedError: it has ended, or was ended meanwhile.
        :raises CapacityError: the node's disk is full; the sandbox goes on.
        :raises UnsupportedOperationError: it is to be published, and the node has no shared store.
        """
        request = PackDiffRequest(self.id, ref, kind, scrub, tuple(rules), publish, comment)
        answer = await self._track.collect(
            "sandbox.pack_diff", request, timeout=SILENCE_S, extend=True, key=key, on_event=telling(progress)
        )
        packed: PackedDiff = answer.value
        return packed

    async def diff(self) -> AsyncIterator[Change]:
        """What was written in it, in the order of paths: a directory before what is in it. All of one moment, for which
        the sandbox stands still. It is no step: each time it is asked anew.

        :raises OutcomeUnknownError: the connection was lost.
        """
        exchange = await self._track.channel.stream("sandbox.diff", SandboxDiffRequest(self.id), (STDOUT,))
        async with aclosing(read_changes(exchange, "sandbox.diff")) as changes:
            async for change in changes:
                yield change

    async def stop(self) -> SandboxInfo:
        """Stop it for good and give back all it used. Again is fine."""
        info: SandboxInfo = await self._track.call("sandbox.stop", SandboxRequest(self.id), repeatable=True)
        return info

    async def _steps_of(self) -> tuple[str, str | None]:
        if self._scope is None:
            info: SandboxInfo = await self._track.channel.call(
                "sandbox.inspect", SandboxRequest(self.id), repeatable=True
            )
            self._scope = info.rollout or info.spec.rollout or self.id
        return self._scope, None if self._scope == self.id else self.id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        except DSecError:
            # the body's own error says more than that the clean-up after it failed too
            if kind is None:
                raise


def _argv(argv: Sequence[str]) -> tuple[str, ...]:
    if isinstance(argv, str) or not argv:
        raise InvalidArgumentError(
            f"cannot run {argv!r}: it must be a list of strings, the program first; use run_shell for a command line",
            field="argv",
        )
    return tuple(argv)
