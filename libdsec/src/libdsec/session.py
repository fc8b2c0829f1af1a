"""A persistent shell in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from ._results import collected_result
from ._steps.track import Track
from ._timeouts import answer_timeout, checked_timeout
from .protocol.errors import DSecError, SessionClosedError, SessionNotFoundError
from .protocol.exec import (
    ExecAnswer,
    ExecResult,
    OutputLimit,
    SessionCloseRequest,
    SessionInfo,
    SessionOpenRequest,
    SessionRunRequest,
)


class Session:
    """One shell whose working directory, variables and jobs stay from one command to the next.

    Its exit codes come from that shell itself, so the results are marked `untrusted`. One command at a time.
    """

    def __init__(
        self,
        track: Track,
        sandbox: str,
        shell: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        user: str | int | None,
    ) -> None:
        self._track = track
        self._sandbox = sandbox
        self._request = SessionOpenRequest(sandbox, tuple(shell), dict(env), cwd, None if user is None else str(user))
        self._info: SessionInfo | None = None
        self._ended = False

    async def open(self) -> Self:
        """Start the shell. Again is fine while it lives.

        :raises CommandNotStartedError: the shell could not be started.
        """
        if self._ended:
            raise SessionClosedError("cannot open this session again: it was closed; make a new one")
        if self._info is None:
            # what it runs is numbered on a track of its own: a session is used beside other calls
            self._info, self._track = await self._track.make("session.open", self._request)
        return self

    async def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        limit: OutputLimit | None = None,
        key: str | None = None,
    ) -> ExecResult:
        """Run one command line and wait for its end.

        A command that outlives `timeout` is killed and its result says so; when the shell itself had to be killed,
        `session_ended` is set and the session is closed.
        :raises SessionClosedError: the session was closed or its shell has ended.
        """
        if self._info is None or self._ended:
            raise SessionClosedError("cannot run a command: this session is not open")
        limit = limit or OutputLimit()
        request = SessionRunRequest(self._sandbox, self._info.session, command, checked_timeout(timeout), limit)
        answer = await self._track.collect(
            "session.run",
            request,
            timeout=answer_timeout(timeout),
            bound=limit.head + limit.tail,
            key=key,
        )
        value: ExecAnswer = answer.value
        self._ended = value.session_ended
        return collected_result(answer)

    async def close(self) -> None:
        """End the shell and what it started. Again is fine, and so is a session whose sandbox is gone."""
        if self._info is None or self._ended:
            self._ended = True
            return
        self._ended = True
        try:
            await self._track.call(
                "session.close", SessionCloseRequest(self._sandbox, self._info.session), repeatable=True
            )
        except SessionNotFoundError:
            pass  # it ended by itself

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except DSecError:
            # the body's own error says more than that the clean-up after it failed too
            if kind is None:
                raise
