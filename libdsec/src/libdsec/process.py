"""A command under way, with its streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Literal, Self

from ._results import streamed_result
from ._transport.codec import codec, encode_event
from ._transport.streaming import Incoming, Streaming
from .protocol.errors import ClientClosedError
from .protocol.exec import ExecResult, ResizeRequest, SignalRequest
from .protocol.frames import STDERR, STDOUT


class OutputStream:
    """What a command prints, in pieces as they come. A reader that does not read stops the command, not the client."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self._incoming.get()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def read(self) -> bytes:
        """The next piece, empty at the end.

        :raises DSecError: the command never started, or the call was lost.
        """
        return await self._incoming.get() or b""


class InputStream:
    """What a command reads."""

    def __init__(self, exchange: Streaming) -> None:
        self._exchange = exchange

    async def write(self, data: bytes | bytearray | memoryview) -> bool:
        """Send, waiting until the command takes it. False when it no longer reads: it has ended."""
        return await self._exchange.write(data)

    async def close(self) -> None:
        """End of file for the command. Again is fine."""
        await self._exchange.write(b"", end=True)


class Process:
    """A command started by `Sandbox.exec_stream`. Leaving its `async with` kills it if it still runs.

    Read both outputs, or `output()`, until their end, then `wait`: output that nobody reads makes the command wait.
    """

    def __init__(self, exchange: Streaming) -> None:
        self._exchange = exchange
        self.stdin = InputStream(exchange)
        self.stdout = OutputStream(exchange.incoming[STDOUT])
        self.stderr = OutputStream(exchange.incoming[STDERR])

    async def output(self) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        """Pieces of both outputs as they come, each with the name of its stream.

        :raises DSecError: the command never started, or the call was lost.
        """
        out, err = self._exchange.incoming[STDOUT], self._exchange.incoming[STDERR]
        while True:
            await self._exchange.until(
                lambda: bool(out.chunks or err.chunks) or (out.ended and err.ended) or self._exchange.ended
            )
            if (chunk := out.take()) is not None:
                yield "stdout", chunk
            elif (chunk := err.take()) is not None:
                yield "stderr", chunk
            else:
                break
        if self._exchange.error is not None:
            raise self._exchange.error

    async def wait(self) -> ExecResult:
        """How it ended; the output is in the streams, not in the result.

        :raises CommandNotStartedError: it never ran.
        :raises OutcomeUnknownError: the connection was lost meanwhile.
        """
        return streamed_result(codec(self._exchange.method).decode(await self._exchange.answer()))

    def signal(self, number: int, *, tree: bool = False) -> None:
        """Send a signal to the command's process group, or with `tree` to all it started. Nothing once it has ended."""
        self._exchange.event(encode_event(SignalRequest(int(number), tree)))

    def kill(self) -> None:
        """Kill it and all it started, however fast that forks. `wait` then says `canceled`."""
        self._exchange.cancel()

    def resize(self, rows: int, cols: int) -> None:
        """Tell the command's terminal its new size."""
        self._exchange.event(encode_event(ResizeRequest(rows, cols)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exchange.abandon(ClientClosedError("cannot use this process: its `async with` was left"))
