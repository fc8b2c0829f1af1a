"""One client: frames in, frames out."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

import msgspec
import structlog

from dsec.bus import Answerer, Request, as_dsec_error, encode_error
from libdsec.protocol import frames
from libdsec.protocol.calls import Hello, decode_call
from libdsec.protocol.errors import (
    DSecError,
    QuotaExceededError,
    UnsupportedOperationError,
    WireError,
)
from libdsec.protocol.frames import Frame, Kind

from .call import ServerCall
from .routes import ROUTES
from .service import PrincipalLike, Service

MAX_CALLS = 4096
"""Under way at once on one connection."""

HIGH_WATER = 8 * 1024 * 1024
LOW_WATER = 1024 * 1024
"""Bytes a client has not read: above the first their sources rest, below the second they go on."""

STALL_TIMEOUT_S = 30.0
"""A client above the high-water mark that reads nothing for so long is disconnected."""

HELLO_TIMEOUT_S = 10.0
LINGER_S = 1.0
"""What a refused client gets to read why."""

_CREDENTIALS = struct.Struct("iII")

_log = structlog.get_logger("dsec.apiserver")
_encode = msgspec.msgpack.Encoder().encode
_decode_hello = msgspec.msgpack.Decoder(Hello).decode


class Connection(asyncio.Protocol):
    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._loop = loop
        self._decoder = frames.Decoder()
        self._calls: dict[int, ServerCall] = {}
        self._transport: asyncio.Transport | None = None
        self._principal: PrincipalLike | None = None
        self._greeted = False
        self._timer: asyncio.TimerHandle | None = None
        self._drained: list[Callable[[], None]] = []
        self._unread = 0
        self.congested = False
        self.lost = False
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when the transport has gone."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by inheritance
        self._transport = transport = cast(asyncio.Transport, transport)
        self._service.connections.add(self)
        transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        hello = Hello(frames.GENERATION, "apiserver", version=self._service.version, max_payload=frames.MAX_PAYLOAD)
        self.write(frames.encode(Kind.HELLO, 0, _encode(hello)))
        try:
            self._principal = self._service.authenticate(*_peer(transport))
        except DSecError as error:
            _log.warning("client refused", error=str(error))
            self._close_with(error)
            return
        self._timer = self._loop.call_later(HELLO_TIMEOUT_S, self._no_hello)

    def data_received(self, data: bytes) -> None:
        if self.lost:
            return
        try:
            for frame in self._decoder.feed(data):
                self._take(frame)
                if self.lost:
                    return
        except DSecError as error:
            _log.warning("client broke the protocol", error=str(error))
            self._close_with(error)

    def pause_writing(self) -> None:
        """It does not read: its sources rest (each asks `congested`), and so do its own further wishes."""
        self.congested = True
        if self._transport is not None and not self.lost and not self._transport.is_closing():
            self._transport.pause_reading()
            self._unread = self._transport.get_write_buffer_size()
            self._set_timer(STALL_TIMEOUT_S, self._stalled)

    def resume_writing(self) -> None:
        self.congested = False
        self._set_timer(None, None)
        if self._transport is not None and not self.lost and not self._transport.is_closing():
            self._transport.resume_reading()
        self._call_drained()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()
        self._set_timer(None, None)
        self._service.connections.discard(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def write(self, frame: bytes) -> None:
        if not self.lost and self._transport is not None:
            self._transport.write(frame)

    def when_drained(self, resume: Callable[[], None]) -> None:
        if self.congested and not self.lost:
            self._drained.append(resume)
        else:
            self._loop.call_soon(resume)

    def forget(self, call: ServerCall) -> None:
        self._calls.pop(call.id, None)

    def close(self) -> None:
        """The server ends: what was written still goes out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.CALL:
            if not self._greeted:
                raise WireError("cannot take a CALL before HELLO")
            self._open(frame)
        elif frame.kind is Kind.HELLO:
            self._greet(frame)
        elif frame.kind is Kind.ACK:
            return  # answers are not kept here
        else:
            call = self._calls.get(frame.call)
            if call is not None:
                call.take(frame)
            elif frame.kind in (Kind.RESULT, Kind.ERROR):
                raise WireError(f"cannot read {frame.kind.name} from a client")

    def _greet(self, frame: Frame) -> None:
        if self._greeted:
            raise WireError("cannot read a second HELLO")
        try:
            hello = _decode_hello(frame.payload)
        except msgspec.DecodeError as error:
            raise WireError(f"cannot read HELLO: {error}") from None
        if hello.generation < 1:
            raise WireError(f"cannot speak generation {hello.generation}: this server speaks {frames.GENERATION}")
        self._greeted = True
        self._set_timer(None, None)

    def _open(self, frame: Frame) -> None:
        if frame.call == 0 or frame.call in self._calls:
            raise WireError(f"cannot take call {frame.call}: the number is in use")
        call = ServerCall(self, frame.call)
        self._calls[frame.call] = call
        try:
            call.answerer = self._route(frame, call)
        except WireError:
            raise
        except Exception as error:
            call.fail(as_dsec_error(error, f"answer call {frame.call}"))

    def _route(self, frame: Frame, call: ServerCall) -> Answerer:
        if len(self._calls) > MAX_CALLS:
            raise QuotaExceededError(f"cannot take another call: {MAX_CALLS} are under way on this connection")
        asked = decode_call(frame.payload)
        route = ROUTES.get(asked.method)
        if route is None:
            raise UnsupportedOperationError(f"cannot call {asked.method[:64]!r}: this server does not know it")
        principal = self._principal
        if principal is None:
            raise WireError("cannot take a CALL of an unknown principal")
        principal.require(route.permission, asked.method)
        if (further := route.further(asked.args)) is not None:
            principal.require(further, f"{asked.method} so")
        return route.handle(self._service, Request(asked.method, asked.args, principal.name, asked.step), call)

    def _close_with(self, error: DSecError) -> None:
        """Tell the client on call 0, then close; what it was told before still reaches it.

        Our half closes first: a client that is still writing would find a closed socket and never read why.
        """
        self.write(frames.encode(Kind.ERROR, 0, encode_error(error)))
        self._lose()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()
            self._timer = self._loop.call_later(LINGER_S, self._transport.abort)

    def _lose(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._set_timer(None, None)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if call.answerer is not None:
                call.answerer.abandon()
        self._call_drained()

    def _call_drained(self) -> None:
        drained, self._drained = self._drained, []
        for resume in drained:
            resume()

    def _set_timer(self, seconds: float | None, then: Callable[[], None] | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and then is not None:
            self._timer = self._loop.call_later(seconds, then)

    def _no_hello(self) -> None:
        self._close_with(WireError(f"cannot wait any longer for HELLO: {HELLO_TIMEOUT_S:g} s have passed"))

    def _stalled(self) -> None:
        if self._transport is None:
            return
        unread = self._transport.get_write_buffer_size()
        if unread < self._unread:
            self._unread = unread
            self._set_timer(STALL_TIMEOUT_S, self._stalled)
            return
        _log.warning("client reads nothing; disconnected", unread=unread)
        self._transport.abort()


def _peer(transport: asyncio.Transport) -> tuple[int, int, int]:
    """What the kernel says of the other end (pid, uid, gid)."""
    sock = transport.get_extra_info("socket")
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return pid, uid, gid
