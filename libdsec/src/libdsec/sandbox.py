"""A sandbox, whatever its backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from ._results import collected_result
from ._timeouts import answer_timeout, checked_timeout
from ._transport.channel import Channel
from .files import Files
from .process import Process
from .protocol.calls import LogEntry, LogRequest, SandboxRequest
from .protocol.errors import DSecError, InvalidArgumentError
from .protocol.exec import ExecRequest, ExecResult, OutputLimit
from .protocol.frames import STDERR, STDOUT
from .protocol.spec import SandboxInfo
from .session import Session

NO_ENV: Mapping[str, str] = {}
_LIMIT = OutputLimit()


class Sandbox:
    """A handle: it holds the sandbox's id and nothing of its state. As `async with` it stops the sandbox at the end."""

    def __init__(self, channel: Channel, sandbox_id: str) -> None:
        self._channel = channel
        self.id = sandbox_id
        self.files = Files(channel, sandbox_id)

    def __repr__(self) -> str:
        return f"Sandbox({self.id!r})"

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
    ) -> ExecResult:
        """Run a command line with the image's shell and wait for its end. As `run`."""
        return await self.run(
            (shell, "-c", command), timeout=timeout, cwd=cwd, env=env, user=user, stdin=stdin, limit=limit
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
    ) -> ExecResult:
        """Run a program and wait for its end.

        However it ended is a result, also when it failed, was killed for memory, or outlived `timeout` seconds (then it
        and all it started are killed, and the result has what was printed). Of each output the first `limit.head` and
        the last `limit.tail` bytes are kept.
        :raises CommandNotStartedError: it never ran: no such program, user or directory.
        :raises SandboxNotFoundError: the sandbox was never there or is forgotten.
        :raises SandboxStateError: the sandbox does not run.
        :raises OutcomeUnknownError: the connection was lost; it may have run.
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
        answer = await self._channel.collect(
            "exec",
            request,
            timeout=answer_timeout(timeout),
            stdin=stdin,
            bound=limit.head + limit.tail,
        )
        return collected_result(answer.value, answer.stdout, answer.stderr)

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

        Whether it could be started is told by its streams and by `wait`.
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
        return Process(await self._channel.stream("exec", request, (STDOUT, STDERR)))

    def session(
        self,
        *,
        shell: Sequence[str] = ("/bin/sh",),
        env: Mapping[str, str] = NO_ENV,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> Session:
        """A persistent shell, opened by `async with` or `open()`."""
        return Session(self._channel, self.id, shell, env, cwd, user)

    async def info(self) -> SandboxInfo:
        """The sandbox as its node knows it now."""
        info: SandboxInfo = await self._channel.call("sandbox.inspect", SandboxRequest(self.id), repeatable=True)
        return info

    async def logs(self, *, limit: int = 1000) -> tuple[LogEntry, ...]:
        """What happened to it, oldest first: the last `limit` entries."""
        answer = await self._channel.call("sandbox.logs", LogRequest(self.id, limit), repeatable=True)
        entries: tuple[LogEntry, ...] = answer.entries
        return entries

    async def stop(self) -> SandboxInfo:
        """Stop it for good and give back all it used. Again is fine."""
        info: SandboxInfo = await self._channel.call("sandbox.stop", SandboxRequest(self.id), repeatable=True)
        return info

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
