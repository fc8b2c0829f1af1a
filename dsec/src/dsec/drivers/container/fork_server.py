"""The edge's side of the fork server: one connection, calls with descriptors beside them, a new server when none
answers.

The server is started detached (own session, own log file), so that it outlives the edge. Layers that were handed over
are remembered here by a descriptor of their own: a new server gets all of them before its first create.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog

from libdsec.protocol import frames
from libdsec.protocol.calls import Hello
from libdsec.protocol.errors import (
    DSecError,
    ErrorBody,
    SandboxNotFoundError,
    UnavailableError,
    WireError,
    from_body,
)
from libdsec.protocol.frames import Frame, Kind

from .channel import receive_buffer
from .launch import launch
from .plan import Plan

CALL_TIMEOUT_S = 10.0
"""For everything but a create: all of them are a few system calls."""

SHUTDOWN_TIMEOUT_S = 30.0
MAX_DESCRIPTORS = 2

# as plain numbers: the enumeration's operators cost more than the call
_CLOSE_ON_EXEC, _CUT_OFF = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)
_FAMILY, _TYPE = int(socket.AF_UNIX), int(socket.SOCK_SEQPACKET)

_log = structlog.get_logger("dsec.fork_server")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_error = msgspec.msgpack.Decoder(ErrorBody).decode
_decode_hello = msgspec.msgpack.Decoder(Hello).decode


class Made(NamedTuple):
    """A sandbox as the fork server hands it over; the descriptors are the receiver's."""

    pid: int
    start_time: int
    pidfd: int
    channel: socket.socket


class _Answer(NamedTuple):
    values: dict[str, Any]
    descriptors: list[int]


class _Link:
    """One live connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_exit: Callable[[str, int], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._loop, self._sock, self._on_exit, self._on_lost = loop, sock, on_exit, on_lost
        self._buffer = receive_buffer()
        self._view = memoryview(self._buffer)
        self._ancillary = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
        self._pending: dict[int, asyncio.Future[_Answer]] = {}
        self._next = 1
        self.hello: asyncio.Future[Hello] = loop.create_future()
        self.open = True
        loop.add_reader(sock.fileno(), self._readable)

    async def call(self, method: str, args: Any, timeout_s: float, descriptor: int | None = None) -> _Answer:
        """:raises DSecError: what the server answered.
        :raises UnavailableError: the connection was lost, or no answer came in time."""
        number = self._next
        self._next += 1
        packet = frames.encode(Kind.CALL, number, _encode({"method": method, "args": args}))
        future: asyncio.Future[_Answer] = self._loop.create_future()
        self._pending[number] = future
        timer = self._loop.call_later(timeout_s, self._expire, number, method, timeout_s)
        try:
            self._send(packet, descriptor)
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                _close_all(future.result().descriptors)  # the answer and the cancel crossed
            raise
        finally:
            timer.cancel()
            self._pending.pop(number, None)

    def send_hello(self, payload: bytes) -> None:
        self._send(frames.encode(Kind.HELLO, 0, payload), None)

    def close(self, why: str) -> None:
        """Idempotent. Every open call ends as unavailable."""
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._sock.fileno())
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

    def _send(self, packet: bytes, descriptor: int | None) -> None:
        if not self.open:
            raise UnavailableError("cannot reach the fork server: the connection was lost")
        rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        try:
            self._sock.sendmsg([packet], rights)
        except BlockingIOError:
            raise UnavailableError("cannot reach the fork server: it takes no more calls at the moment") from None
        except OSError as error:
            self.close(f"sending failed: {error.strerror}")
            raise UnavailableError(f"cannot reach the fork server: {error.strerror}") from None

    def _readable(self) -> None:
        try:
            while self.open:
                size, ancillary, flags, _ = self._sock.recvmsg_into(
                    [self._buffer], self._ancillary, _CLOSE_ON_EXEC
                )
                descriptors = _descriptors(ancillary)
                if size == 0:
                    self.close("it closed the connection")
                    return
                if flags & _CUT_OFF:
                    _close_all(descriptors)
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
        if frame.kind is Kind.HELLO:
            self.hello.set_result(_decode_hello(frame.payload))
        elif frame.kind is Kind.EVENT:
            event = _decode(frame.payload)
            if event.get("event") == "exited":
                self._on_exit(event["id"], event["status"])
        elif frame.kind in (Kind.RESULT, Kind.ERROR):
            future = self._pending.get(frame.call)
            if future is None or future.done():
                _close_all(descriptors)  # nobody waits any more: the sandbox it made is ended by whoever gave up
                return
            if frame.kind is Kind.ERROR:
                future.set_exception(from_body(_decode_error(frame.payload)))
            else:
                future.set_result(_Answer(_decode(frame.payload), descriptors))
            return
        _close_all(descriptors)


class ForkServer:
    """The fork server of this node, whichever process it is at the moment."""

    def __init__(
        self, *, aether: str, socket_path: str, log_path: str, epoch: str, on_exit: Callable[[str, int], None]
    ) -> None:
        self._aether, self._socket_path, self._log_path, self._epoch = aether, socket_path, log_path, epoch
        self._on_exit = on_exit
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()
        self._held: dict[str, int] = {}
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """:raises UnavailableError: none answers and none can be started."""
        await self._live()

    async def end_predecessor(self) -> bool:
        """Shut down a server that an earlier edge left, with all its sandboxes. False when there was none."""
        sock = _connect(self._socket_path)
        if sock is None:
            return False
        link = await self._greet(sock)
        await link.call("server.shutdown", {}, SHUTDOWN_TIMEOUT_S)
        link.close("it was shut down")
        return True

    async def hold(self, key: str, mount: int) -> None:
        """Hand over a detached mount (the descriptor stays the caller's)."""
        copy = os.dup(mount)
        try:
            await (await self._live()).call("layer.hold", {"key": key}, CALL_TIMEOUT_S, mount)
        except BaseException:
            os.close(copy)
            raise
        earlier = self._held.get(key)
        self._held[key] = copy
        if earlier is not None:
            os.close(earlier)

    async def drop(self, key: str) -> None:
        """Let go of a layer. A server that is gone has let go of it already.

        :raises ConflictError: a running sandbox was made from it; it stays held.
        """
        if self._link is not None and self._link.open:
            await self._link.call("layer.drop", {"key": key}, CALL_TIMEOUT_S)
        copy = self._held.pop(key, None)
        if copy is not None:
            os.close(copy)

    async def create(self, plan: Plan, timeout_s: float) -> Made:
        """:raises UnavailableError: no answer; the caller must `kill` the id before it gives anything back.
        :raises DSecError: what the server refused; nothing is left of the sandbox."""
        answer = await (await self._live()).call("sandbox.create", plan, timeout_s)
        if len(answer.descriptors) != MAX_DESCRIPTORS:
            _close_all(answer.descriptors)
            raise WireError(f"cannot take sandbox {plan.id}: {len(answer.descriptors)} descriptors came with it, not 2")
        pidfd, channel = answer.descriptors
        sock = socket.socket(_FAMILY, _TYPE, 0, fileno=channel)
        return Made(answer.values["pid"], answer.values["start_time"], pidfd, sock)

    async def kill(self, sandbox: str) -> bool:
        """Whether the server knew it. Its PID 1 is dead and reaped afterwards.

        :raises UnavailableError: no server answers (one that died took no sandbox with it: kill by pidfd).
        """
        link = self._link
        if link is None or not link.open:
            raise UnavailableError(f"cannot kill sandbox {sandbox}: no fork server answers")
        try:
            await link.call("sandbox.kill", {"id": sandbox}, CALL_TIMEOUT_S)
        except SandboxNotFoundError:
            return False
        return True

    async def close(self) -> None:
        """End the server. Its sandboxes were ended before; should one be left, it ends with it."""
        self._closed = True
        link = self._link
        if link is not None and link.open:
            try:
                await link.call("server.shutdown", {}, SHUTDOWN_TIMEOUT_S)
            except UnavailableError as error:
                _log.warning("fork server gone before its shutdown", error=str(error))
            link.close("it was shut down")
        if self._process is not None:
            await asyncio.to_thread(self._process.wait, CALL_TIMEOUT_S)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket_path)
        _close_all(list(self._held.values()))
        self._held.clear()

    async def _live(self) -> _Link:
        if self._link is not None and self._link.open:
            return self._link
        async with self._connecting:
            if self._link is not None and self._link.open:
                return self._link
            if self._closed:
                raise UnavailableError("cannot reach the fork server: this edge is closing")
            sock = _connect(self._socket_path)
            if sock is None:
                sock = self._start_one()
            link = await self._greet(sock)
            try:
                for key, mount in self._held.items():
                    await link.call("layer.hold", {"key": key}, CALL_TIMEOUT_S, mount)
            except DSecError:
                link.close("it did not take the layers")
                raise
            self._link = link
            return link

    def _start_one(self) -> socket.socket:
        """It listens on a socket that we made: connecting works at once, and the hello comes when it is ready."""
        if self._process is not None:
            self._process.poll()  # reap the one before
        self._process = launch(self._aether, self._socket_path, self._log_path)
        _log.info("started the fork server", pid=self._process.pid)
        sock = _connect(self._socket_path)
        if sock is None:
            raise UnavailableError(f"cannot start the fork server: it ended at once; see {self._log_path}")
        return sock

    async def _greet(self, sock: socket.socket) -> _Link:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, frames.MAX_PAYLOAD)
        link = _Link(asyncio.get_running_loop(), sock, self._on_exit, self._lost)
        hello = Hello(frames.GENERATION, "edge", epoch=self._epoch, max_payload=frames.MAX_PAYLOAD)
        try:
            link.send_hello(_encode(hello))
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await link.hello
        except TimeoutError:
            link.close("it did not say hello")
            raise UnavailableError(
                f"cannot speak to the fork server: it did not say hello; see {self._log_path}"
            ) from None
        return link

    def _lost(self, why: str) -> None:
        if not self._closed:
            _log.warning("fork server connection ended", why=why)


def _connect(path: str) -> socket.socket | None:
    """A connection, or None when nobody listens."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except OSError as error:
        sock.close()
        raise UnavailableError(f"cannot reach the fork server at {path}: {error.strerror}") from None
    return sock


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            found.extend(numbers)
    return found


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
