"""One connection to a fork server: calls with descriptors beside them, in both directions.

What the socket does not take at once waits in a queue; a call that is given up before it was sent is taken out of it
and surely never ran.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog

from libdsec.protocol import frames
from libdsec.protocol.calls import Hello
from libdsec.protocol.errors import ErrorBody, UnavailableError, WireError, from_body
from libdsec.protocol.frames import Frame, Kind

from .channel import receive_buffer

MAX_DESCRIPTORS = 2
MAX_QUEUED = 8192
"""Calls that wait for the socket."""

# as plain numbers: the enumeration's operators cost more than the call
_CLOSE_ON_EXEC, _CUT_OFF = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)

_log = structlog.get_logger("dsec.fork_server")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_error = msgspec.msgpack.Decoder(ErrorBody).decode
_decode_hello = msgspec.msgpack.Decoder(Hello).decode


class Answer(NamedTuple):
    values: dict[str, Any]
    descriptors: list[int]


class Link:
    """Closed for good once it was lost."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_exit: Callable[[str, int | None], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """`on_exit` gets (sandbox, wait status) of each PID 1 that has died; no status where the server could not
        reap it."""
        self._loop, self._sock, self._on_exit, self._on_lost = loop, sock, on_exit, on_lost
        self._buffer = receive_buffer()
        self._view = memoryview(self._buffer)
        self._ancillary = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._queue: deque[tuple[int, bytes, Sequence[int]]] = deque()
        self._next = 1
        self.hello: asyncio.Future[Hello] = loop.create_future()
        self.open = True
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, frames.MAX_PAYLOAD)
        loop.add_reader(sock.fileno(), self._readable)

    async def call(self, method: str, args: Any, timeout_s: float, descriptors: Sequence[int] = ()) -> Answer:
        """The descriptors stay the caller's.

        :raises DSecError: what the server answered.
        :raises UnavailableError: the connection was lost, or no answer came in time.
        """
        number = self._next
        self._next += 1
        packet = frames.encode(Kind.CALL, number, _encode({"method": method, "args": args}))
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._pending[number] = future
        timer = self._loop.call_later(timeout_s, self._expire, number, method, timeout_s)
        try:
            self._send(number, packet, descriptors)
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                close_all(future.result().descriptors)  # the answer and the cancel crossed
            raise
        finally:
            timer.cancel()
            self._pending.pop(number, None)
            if self._queue:
                self._withdraw(number)

    def send_hello(self, payload: bytes) -> None:
        self._send(0, frames.encode(Kind.HELLO, 0, payload), ())

    def close(self, why: str) -> None:
        """Idempotent. Every open call ends as unavailable."""
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._sock.fileno())
        if self._queue:
            self._loop.remove_writer(self._sock.fileno())
            self._queue.clear()
        self._sock.close()
        if not self.hello.done():
            self.hello.set_exception(UnavailableError(f"cannot speak to the fork server: {why}"))
            self.hello.exception()  # seen here: nobody may be waiting for it
        for future in self._pending.values():
            if not future.done():
                future.set_exception(UnavailableError(f"cannot reach the fork server: {why}"))
        self._on_lost(why)

    def _expire(self, number: int, method: str, timeout_s: float) -> None:
        future = self._pending.get(number)
        if future is not None and not future.done():
            future.set_exception(
                UnavailableError(f"cannot finish {method}: no answer of the fork server in {timeout_s:g} s")
            )

    def _send(self, number: int, packet: bytes, descriptors: Sequence[int]) -> None:
        if not self.open:
            raise UnavailableError("cannot reach the fork server: the connection was lost")
        if not self._queue and self._try(packet, descriptors):
            return
        if len(self._queue) >= MAX_QUEUED:
            raise UnavailableError(f"cannot reach the fork server: {MAX_QUEUED} calls wait for it already")
        if not self._queue:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        self._queue.append((number, packet, descriptors))

    def _try(self, packet: bytes, descriptors: Sequence[int]) -> bool:
        """Whether the socket took it."""
        try:
            if not descriptors:
                self._sock.send(packet)
            else:
                rights = array.array("i", descriptors)
                self._sock.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except BlockingIOError:
            return False
        except OSError as error:
            self.close(f"sending failed: {error.strerror}")
            raise UnavailableError(f"cannot reach the fork server: {error.strerror}") from None
        return True

    def _writable(self) -> None:
        try:
            while self._queue:
                _, packet, descriptors = self._queue[0]
                if not self._try(packet, descriptors):
                    return
                self._queue.popleft()
        except UnavailableError:
            return  # every call was told by the close
        self._loop.remove_writer(self._sock.fileno())

    def _withdraw(self, number: int) -> None:
        kept = [entry for entry in self._queue if entry[0] != number]
        if len(kept) == len(self._queue):
            return
        self._queue = deque(kept)
        if not kept:
            self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        try:
            while self.open:
                size, ancillary, flags, _ = self._sock.recvmsg_into([self._buffer], self._ancillary, _CLOSE_ON_EXEC)
                descriptors = _descriptors(ancillary) if ancillary else []
                if size == 0:
                    self.close("it closed the connection")
                    return
                if flags & _CUT_OFF:
                    close_all(descriptors)
                    raise WireError("cannot read a packet of the fork server: descriptors were cut off")
                self._take(frames.decode_packet(self._view[:size]), descriptors)
        except BlockingIOError:
            return
        except (WireError, msgspec.DecodeError, KeyError) as error:
            _log.error("fork server broke the protocol", error=str(error))
            self.close(f"it broke the protocol: {error}")
        except OSError as error:
            self.close(f"receiving failed: {error.strerror}")

    def _take(self, frame: Frame, descriptors: list[int]) -> None:
        kind = frame.kind
        if kind is Kind.RESULT or kind is Kind.ERROR:
            future = self._pending.get(frame.call)
            if future is not None and not future.done():
                if kind is Kind.ERROR:
                    future.set_exception(from_body(_decode_error(frame.payload)))
                else:
                    future.set_result(Answer(_decode(frame.payload), descriptors))
                    return
            # nobody waits any more: the sandbox it made is ended by whoever gave up
        elif kind is Kind.EVENT:
            event = _decode(frame.payload)
            if event.get("event") == "exited":
                self._on_exit(event["id"], event.get("status"))
        elif kind is Kind.HELLO and not self.hello.done():
            self.hello.set_result(_decode_hello(frame.payload))
        close_all(descriptors)


def connect(path: str) -> socket.socket | None:
    """A connection, or None when nobody listens.

    :raises UnavailableError: it cannot be made for another reason.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except OSError as error:
        sock.close()
        raise UnavailableError(f"cannot reach the fork server at {path}: {error.strerror}") from None
    return sock


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            found.extend(numbers)
    return found
