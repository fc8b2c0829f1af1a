"""Calls that move a file's or a tree's bytes: those under way, and recorded ones that are told again."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from ._steps.track import Begun, Track
from ._transport.codec import codec
from ._transport.streaming import Streaming
from .protocol.errors import ClientClosedError, WireError
from .protocol.files import FileAnswer
from .protocol.frames import STDOUT
from .protocol.steps import Step

Progress = Callable[[int], None]
"""Called with the number of bytes moved so far."""

PROGRESS_TIMEOUT_S = 90.0
"""How long a file operation may show no progress; the node gives up after 60 s and says why."""

T = TypeVar("T")


def decoded(decode: Callable[[bytes], T], chunk: bytes) -> T:
    """:raises WireError: not what it should be."""
    try:
        return decode(chunk)
    except msgspec.DecodeError as error:
        raise WireError(f"cannot read what a file operation sent: {error}") from None


class _Moving:
    """A call with data under way; leaving its `async with` before its end cancels it."""

    def __init__(self, exchange: Streaming) -> None:
        self._exchange = exchange

    async def answer(self) -> FileAnswer:
        """How it ended. :raises DSecError: badly."""
        answer: FileAnswer = codec(self._exchange.method).decode(await self._exchange.answer(PROGRESS_TIMEOUT_S))
        return answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exchange.abandon(ClientClosedError("cannot go on: this transfer was left"))


class Download(_Moving):
    """What a sandbox sends, in pieces, up to its end."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        incoming = self._exchange.incoming[STDOUT]
        while (chunk := await incoming.get(PROGRESS_TIMEOUT_S)) is not None:
            yield chunk


class Upload(_Moving):
    """What a sandbox gets."""

    def __init__(self, exchange: Streaming, progress: Progress | None) -> None:
        super().__init__(exchange)
        self._progress = progress
        self._sent = 0

    async def send(self, data: bytes) -> bool:
        """False when the sandbox takes no more; its answer says why."""
        taken = await self._exchange.write(data, timeout=PROGRESS_TIMEOUT_S)
        self._sent += len(data)
        if taken and self._progress is not None:
            self._progress(self._sent)
        return taken

    async def end(self) -> FileAnswer:
        """All was sent; how it ended."""
        await self._exchange.write(b"", end=True, timeout=PROGRESS_TIMEOUT_S)
        return await self.answer()


class _Replayed:
    """As `_Moving`, of a recorded step: nothing is sent."""

    def __init__(self, track: Track, begun: Begun, step: Step) -> None:
        self._track = track
        self._begun = begun
        self._step = step

    async def answer(self) -> FileAnswer:
        """How it ended. :raises DSecError: badly."""
        answer: FileAnswer = self._track.recording.outcome(self._begun.how, self._step)
        return answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is under way."""


class ReplayedDownload(_Replayed):
    """What a sandbox sent. When that cannot be read, the calls `before` it that belong to it may be said again too."""

    def __init__(self, track: Track, begun: Begun, step: Step, before: tuple[Begun, ...] = ()) -> None:
        super().__init__(track, begun, step)
        self._before = before

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._step.state == "result" and not self._step.opaque:
            with self._track.reading(*self._before, self._begun):
                data = await self._track.recording.output(self._step)
            yield data


class ReplayedUpload(_Replayed):
    """What a sandbox would get, held against what it got."""

    def __init__(self, track: Track, begun: Begun, step: Step) -> None:
        super().__init__(track, begun, step)
        self._seen = hashlib.sha256()

    async def send(self, data: bytes) -> bool:
        """Always more: all of it is looked at."""
        self._seen.update(data)
        return True

    async def end(self) -> FileAnswer:
        """That was all. :raises ReplayDivergedError: it is not what was sent."""
        self._track.recording.check_input(self._step, self._seen.digest())
        return await self.answer()
