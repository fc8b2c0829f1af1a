"""Servers that do not do what they should."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from published import open_impatient

from dsec.store.remote.objects import Objects
from libdsec.protocol.errors import (
    DSecError,
    IntegrityError,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedOperationError,
)

CONTENT = b"0123456789"


def reply(status: str, body: bytes = b"", length: int | None = None, extra: str = "") -> bytes:
    size = len(body) if length is None else length
    date = "Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n{date}{extra}\r\n".encode() + body


GOOD = reply("206 Partial Content", CONTENT[2:5], extra="Content-Range: bytes 2-4/10\r\n")
WHOLE = reply("200 OK", CONTENT)
CUT = reply("206 Partial Content", CONTENT[2:4], 3, "Content-Range: bytes 2-4/10\r\n")


class Scripted:
    """Answers one after another, the last one again and again; each ends its connection."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.requests: list[str] = []
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Objects]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        async with server:
            yield open_impatient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for connection in self._connections:
            connection.cancel()
        while self._connections:
            await asyncio.wait(self._connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            await self._answer(reader, writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        except asyncio.CancelledError:
            pass  # as an error it would be logged, and there is nobody to have it
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head.split(b" ", 1)[0].decode())
            if head.startswith(b"HEAD"):
                writer.write(reply("200 OK", length=len(CONTENT)))
            else:
                writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
            await writer.drain()


@pytest.mark.parametrize("first", [CUT, b"", b"nonsense\r\n\r\n", reply("503 Slow Down"), reply("500 Oh")])
async def test_what_fails_once_is_asked_for_again(first: bytes) -> None:
    server = Scripted(first, GOOD)
    async with server.serving() as objects:
        assert bytes(await objects.get_range("object", 2, 3)) == CONTENT[2:5]
    assert server.requests.count("GET") == 2


@pytest.mark.parametrize("always", [CUT, b"", b"nonsense\r\n\r\n", reply("503 Slow Down")])
async def test_what_fails_always_is_unavailable(always: bytes) -> None:
    server = Scripted(always)
    async with server.serving() as objects:
        with pytest.raises(UnavailableError, match="cannot read object"):
            await objects.get_range("object", 2, 3)
    assert server.requests.count("GET") == 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (reply("403 Forbidden"), PermissionDeniedError),
        (reply("401 Unauthorized"), PermissionDeniedError),
        (reply("404 Not Found"), IntegrityError),
        (WHOLE, UnsupportedOperationError),
        (reply("206 Partial Content", CONTENT[:3], extra="Content-Range: bytes 0-2/10\r\n"), DSecError),
        (reply("206 Partial Content", CONTENT[2:4], extra="Content-Range: bytes 2-3/4\r\n"), DSecError),
    ],
)
async def test_what_is_of_no_use_again(answer: bytes, expected: type[DSecError]) -> None:
    async with Scripted(answer).serving() as objects:
        with pytest.raises(expected):
            await objects.get_range("object", 2, 3)


async def test_an_object_larger_than_it_may_be_is_not_read() -> None:
    """However much a server wants to send."""
    server = Scripted(reply("200 OK", bytes(1000), 1 << 40))
    async with server.serving() as objects:
        with pytest.raises(IntegrityError, match="more than 100"):
            await objects.get("object", 100)


ENDLESS = b"10000\r\n" + bytes(0x10000) + b"\r\n"
"""A part of a body, again and again."""


class Endless(Scripted):
    """Tells a length, and sends parts for as long as somebody takes them."""

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sent = 0
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.answers[0])
            while self.sent < 1 << 28:
                writer.write(ENDLESS)
                self.sent += len(ENDLESS)
                await writer.drain()


@pytest.mark.parametrize(
    ("status", "extra"), [("200 OK", ""), ("206 Partial Content", "Content-Range: bytes 2-4/10\r\n")]
)
async def test_an_answer_that_does_not_end_is_not_taken_into_memory(status: str, extra: str) -> None:
    server = Endless(reply(status, length=3, extra=f"Transfer-Encoding: chunked\r\n{extra}"))
    async with server.serving() as objects:
        with pytest.raises(UnavailableError, match="bytes came instead of 3"):
            await (objects.get_range("object", 2, 3) if extra else objects.get("object", 10))
    assert server.sent < 1 << 26
