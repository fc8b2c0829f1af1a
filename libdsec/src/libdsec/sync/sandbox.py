"""A sandbox, blocking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from .. import sandbox as aio
from ..protocol.images import Change
from .files import Files
from .logged import Logged
from .portal import Portal, blocking, iterated
from .process import Process
from .session import Session


class Sandbox(Logged):
    __doc__ = aio.Sandbox.__doc__

    def __init__(self, portal: Portal, twin: aio.Sandbox) -> None:
        super().__init__(portal, twin)
        self.id = twin.id
        self.files = Files(portal, twin.files)

    run_shell = blocking(aio.Sandbox.run_shell)
    run = blocking(aio.Sandbox.run)
    info = blocking(aio.Sandbox.info)
    logs = blocking(aio.Sandbox.logs)
    pause = blocking(aio.Sandbox.pause)
    resume = blocking(aio.Sandbox.resume)
    pack_diff = blocking(aio.Sandbox.pack_diff)
    stop = blocking(aio.Sandbox.stop)

    def diff(self) -> Iterator[Change]:
        """What was written in it, in the order of paths: a directory before what is in it. All of one moment, for which
        the sandbox stands still. It is no step: each time it is asked anew.

        :raises OutcomeUnknownError: the connection was lost.
        """
        return iterated(self._portal, self._twin.diff())

    def exec_stream(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] = aio.NO_ENV,
        user: str | int | None = None,
        stdin: bool = False,
        pty: bool = False,
        rows: int = 24,
        cols: int = 80,
    ) -> Process:
        """Start a program and speak with it while it runs. `pty` gives it a terminal, all of whose output is stdout.

        Whether it could be started is told by its streams and by `wait`. It cannot be replayed from a command log.
        """
        starting = self._twin.exec_stream(
            argv, timeout=timeout, cwd=cwd, env=env, user=user, stdin=stdin, pty=pty, rows=rows, cols=cols
        )
        return Process(self._portal, self._portal.call(starting))

    def track(self, name: str) -> Sandbox:
        """The same sandbox on a track of its own, for what runs at the same time as other calls on it.

        A handle made from an id has no numbers, and is the same on every track.
        """
        return Sandbox(self._portal, self._portal.run(lambda: self._twin.track(name)))

    def session(
        self,
        *,
        shell: Sequence[str] = ("/bin/sh",),
        env: Mapping[str, str] = aio.NO_ENV,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> Session:
        """A persistent shell, opened by `with` or `open()`."""
        return Session(self._portal, self._twin.session(shell=shell, env=env, cwd=cwd, user=user))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._twin.__aexit__(kind, error, trace))
