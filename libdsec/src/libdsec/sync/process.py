"""A command under way, blocking."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Literal, Self

from .. import process as aio
from .portal import Portal, Twin, blocking, inside, iterated


class OutputStream(Twin):
    __doc__ = aio.OutputStream.__doc__

    read = blocking(aio.OutputStream.read)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk = self.read()
        if not chunk:
            raise StopIteration
        return chunk


class InputStream(Twin):
    __doc__ = aio.InputStream.__doc__

    write = blocking(aio.InputStream.write)
    close = blocking(aio.InputStream.close)


class Process(Twin):
    __doc__ = aio.Process.__doc__

    def __init__(self, portal: Portal, twin: aio.Process) -> None:
        super().__init__(portal, twin)
        self.stdin = InputStream(portal, twin.stdin)
        self.stdout = OutputStream(portal, twin.stdout)
        self.stderr = OutputStream(portal, twin.stderr)

    wait = blocking(aio.Process.wait)
    signal = inside(aio.Process.signal)
    kill = inside(aio.Process.kill)
    resize = inside(aio.Process.resize)

    def output(self) -> Iterator[tuple[Literal["stdout", "stderr"], bytes]]:
        """Pieces of both outputs as they come, each with the name of its stream.

        :raises DSecError: the command never started, or the call was lost.
        """
        return iterated(self._portal, self._twin.output())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._twin.__aexit__(kind, error, trace))
