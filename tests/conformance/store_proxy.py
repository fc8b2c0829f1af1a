"""A TCP proxy before a store's server, which stops half-way when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Proxy:
    """Passes on what comes. After `left` bytes from the side that is `counted` (None: never) it stops: it cuts the
    connection and every new one, or, where it `stalls`, keeps them and passes nothing on."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._connections: set[asyncio.Task[None]] = set()
        self._passing: set[asyncio.Task[None]] = set()
        self.heal()

    def heal(self) -> None:
        """As a server that was started again: what was connected is so no more."""
        for task in self._passing:
            task.cancel()
        self.left: int | None = None
        self._answers = True
        self._stalls = False

    def stop_after(self, count: int, *, of_answers: bool, stalls: bool = False) -> None:
        self.left, self._answers, self._stalls = count, of_answers, stalls

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Yields the port, on loopback."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        async with server:
            try:
                yield server.sockets[0].getsockname()[1]
            finally:
                for task in self._passing:
                    task.cancel()
                await asyncio.gather(*self._connections)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        with contextlib.ExitStack() as stack:
            stack.callback(writer.close)
            upstream, towards = await asyncio.open_connection(*self._upstream)
            stack.callback(towards.close)
            passing = {
                asyncio.ensure_future(self._pass(reader, towards, answers=False)),
                asyncio.ensure_future(self._pass(upstream, writer, answers=True)),
            }
            self._passing |= passing
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            for one in passing:
                one.cancel()
            await asyncio.gather(*passing, return_exceptions=True)
            self._passing -= passing

    async def _pass(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await source.read(16 * 1024):
                if self.left is not None and answers == self._answers:
                    piece, self.left = piece[: self.left], max(0, self.left - len(piece))
                to.write(piece)
                await to.drain()
                if self.left == 0 and answers == self._answers:
                    if self._stalls:
                        await asyncio.Event().wait()
                    return
