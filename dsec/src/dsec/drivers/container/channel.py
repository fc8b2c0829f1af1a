"""The edge's end of the channel to an init: frames as packets, many calls at once.

No task and no copy more than needed: a readable socket is read into one buffer shared by all channels, and each frame
goes straight to the caller of its call. What cannot be sent at once waits in a bounded queue. An answer is
acknowledged shortly after it was delivered (of a call with a tag: after its caller has recorded it), several together,
off the path of the next call.

A channel that an earlier edge used holds whatever that edge has not read. All of it is dropped up to init's hello to
us; the calls that init names then are given to whoever wants their answers.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from dsec.bus import Caller, Unheard, encode_error
from dsec.drivers.base import OnKnown
from libdsec.protocol import frames
from libdsec.protocol.errors import (
    DSecError,
    InvalidArgumentError,
    QuotaExceededError,
    SandboxFailedError,
    UnavailableError,
    WireError,
)
from libdsec.protocol.frames import Frame, Kind

MAX_CALLS = 1024
"""Open at once on one channel."""

MAX_KNOWN = 8192
"""Calls of earlier edges that an init may name: more than it can keep."""

MAX_QUEUED = 8 * 1024 * 1024
"""Bytes that wait for a full socket before new calls are refused; windows bound what open calls can add."""

PACKETS_A_TURN = 32
"""Read before other sockets get their turn."""

ACK_DELAY_S = 0.05

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode


def receive_buffer() -> bytearray:
    """Room for one packet; one is enough for all channels of a loop."""
    return bytearray(frames.HEADER_SIZE + frames.MAX_PAYLOAD + 1)


class Successor(NamedTuple):
    """Of a channel that an earlier edge used."""

    epoch: str
    """Ours, by which init's hello to us is told from one that nobody read."""
    on_known: OnKnown


class ChannelCall:
    """The answering end of one call."""

    __slots__ = ("_channel", "_id", "_streaming", "_tagged")

    def __init__(self, channel: Channel, call: int, streaming: bool, tagged: bool = False) -> None:
        self._channel = channel
        self._id = call
        self._streaming = streaming
        self._tagged = tagged

    def data(self, stream: int, payload: bytes, flags: int) -> None:
        self._channel.send_for(self._id, frames.encode(Kind.DATA, self._id, payload, stream, flags))

    def credit(self, stream: int, amount: int) -> None:
        self._channel.send_for(self._id, frames.encode_credit(self._id, stream, amount))

    def event(self, payload: bytes) -> None:
        self._channel.send_for(self._id, frames.encode(Kind.EVENT, self._id, payload))

    def cancel(self) -> None:
        self._channel.send_for(self._id, frames.encode(Kind.CANCEL, self._id))

    def abandon(self) -> None:
        if self._streaming:
            self.cancel()

    def acknowledge(self) -> None:
        """See `dsec.drivers.base.Acknowledging`."""
        if self._tagged:
            self._tagged = False
            self._channel.acknowledge(self._id)


class Channel:
    """One SOCK_SEQPACKET connection to an init."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        buffer: bytearray,
        on_lost: Callable[[str], None],
        *,
        first_call: int = 1,
        successor: Successor | None = None,
    ) -> None:
        """`on_lost` is called once, with what happened, when the peer has gone or broken the protocol. No earlier edge
        used a number from `first_call` on."""
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._on_lost = on_lost
        self._callers: dict[int, Caller] = {}
        self._tagged: set[int] = set()
        """Those of them whose answer is acknowledged by who records it."""
        self._first = self._next = first_call
        self._successor = successor
        self._heard = False
        """Whether the last hello of init was to us."""
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._acks: list[int] = []
        self._ack_timer: asyncio.TimerHandle | None = None
        self._reading = False
        self._greeted = False
        self._ended: DSecError | None = None
        self.ready: asyncio.Future[None] = loop.create_future()
        """Done when the peer has said hello."""
        sock.setblocking(False)
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 2 * frames.MAX_PAYLOAD:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, frames.MAX_PAYLOAD)
        self._resume()

    @property
    def open(self) -> bool:
        """Whether the peer is there, as far as we know."""
        return self._fd >= 0

    def fileno(self) -> int:
        """-1 when it is closed."""
        return self._fd

    @property
    def open_calls(self) -> int:
        return len(self._callers)

    def call(self, method: str, args: Any, caller: Caller, streaming: bool, tag: str = "") -> ChannelCall:
        """Open a call.

        :raises SandboxFailedError | InvalidArgumentError | QuotaExceededError | UnavailableError: see `Instance.call`.
        """
        if self._ended is not None:
            raise self._ended
        payload = _encode({"method": method, "args": args} | ({"tag": tag} if tag else {}))
        if len(payload) > frames.MAX_PAYLOAD:
            raise InvalidArgumentError(
                f"cannot call {method}: its arguments take {len(payload)} bytes, the limit is {frames.MAX_PAYLOAD}"
            )
        if len(self._callers) >= MAX_CALLS:
            raise QuotaExceededError(
                f"cannot call {method}: {MAX_CALLS} calls are open in this sandbox", limit=MAX_CALLS
            )
        if self._queued > MAX_QUEUED:
            raise UnavailableError(f"cannot call {method}: the sandbox has not taken {self._queued} bytes sent before")
        number = self._next
        self._next = number + 1
        self._callers[number] = caller
        if tag:
            self._tagged.add(number)
        self._send(frames.encode(Kind.CALL, number, payload))
        return ChannelCall(self, number, streaming, bool(tag))

    def send_for(self, call: int, packet: bytes) -> None:
        """Send a frame of an open call; of an ended one it is dropped, since the two cross."""
        if call in self._callers:
            self._send(packet)

    def read_now(self) -> None:
        """Take what has come already, without a turn of the event loop."""
        if self._reading:
            self._readable()

    def hello(self, payload: bytes) -> None:
        self._send(frames.encode(Kind.HELLO, 0, payload))

    def named(self) -> None:
        """Init has named every call that it knows: a hello from now on is a broken protocol."""
        self._successor = None

    def acknowledge(self, call: int) -> None:
        """Let init forget an answer, soon."""
        if self._fd < 0:
            return
        self._acks.append(call)
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_later(ACK_DELAY_S, self._send_acks)

    def detach(self, error: DSecError) -> None:
        """Close, and leave every open call to the next edge: no caller hears of it. New calls get `error`."""
        if self._ended is None:
            self._ended = error
            self._send_acks()
            self._callers.clear()
            self._close()

    def end(self, error: DSecError) -> None:
        """Close, and end every open call with `error`. Idempotent."""
        if self._ended is not None:
            return
        self._ended = error
        self._close()
        callers, self._callers = self._callers, {}
        payload = encode_error(error)
        for caller in callers.values():
            caller.error(payload)

    def _close(self) -> None:
        if self._fd < 0:
            return
        if self._reading:
            self._loop.remove_reader(self._fd)
            self._reading = False
        if self._queue:
            self._loop.remove_writer(self._fd)
            self._queue.clear()
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        if not self.ready.done():
            self.ready.cancel()
        self._fd = -1
        self._sock.close()

    def _lost(self, why: str) -> None:
        """The calls stay open until `end` says with which error they end."""
        if self._fd >= 0:
            self._close()
            self._on_lost(why)

    def _send(self, packet: bytes) -> None:
        if self._fd < 0:
            return
        if not self._queue:
            try:
                self._sock.send(packet)
                return
            except BlockingIOError:
                self._loop.add_writer(self._fd, self._writable)
            except OSError as error:
                self._lost(f"sending failed: {error.strerror}")
                return
        self._queue.append(packet)
        self._queued += len(packet)

    def _writable(self) -> None:
        while self._queue:
            packet = self._queue[0]
            try:
                self._sock.send(packet)
            except BlockingIOError:
                return
            except OSError as error:
                self._lost(f"sending failed: {error.strerror}")
                return
            self._queue.popleft()
            self._queued -= len(packet)
        self._loop.remove_writer(self._fd)

    def _resume(self) -> None:
        if self._fd >= 0 and not self._reading:
            self._loop.add_reader(self._fd, self._readable)
            self._reading = True

    def _rest(self, caller: Caller) -> None:
        """Read no more until the caller has drained: what it has not taken stays in the socket and in init."""
        if self._reading:
            self._loop.remove_reader(self._fd)
            self._reading = False
            caller.when_drained(self._resume)

    def _readable(self) -> None:
        receive, buffer, view = self._sock.recv_into, self._buffer, self._view
        try:
            for _ in range(PACKETS_A_TURN):
                if not self._reading:
                    return
                size = receive(buffer)
                if size == 0:
                    self._lost("the peer closed it")
                    return
                self._take(frames.decode_packet(view[:size]))
        except BlockingIOError:
            return
        except WireError as error:
            self._lost(str(error))
        except OSError as error:
            self._lost(f"receiving failed: {error.strerror}")

    def _take(self, frame: Frame) -> None:
        kind, call = frame.kind, frame.call
        if kind is Kind.HELLO:
            self._take_hello(frame)
            return
        caller = self._callers.get(call)
        if caller is None:
            if kind is Kind.EVENT and self._heard and 0 < call < self._first:
                self._take_known(frame)
            elif (call == 0 and kind is not Kind.EVENT) or call >= self._next:
                raise WireError(f"cannot read {kind.name} of call {call}: it was never opened")
            return
        if kind is Kind.DATA:
            if not caller.data(frame.stream, frame.payload, frame.flags):
                self._rest(caller)
        elif kind is Kind.RESULT or kind is Kind.ERROR:
            del self._callers[call]
            self._deliver(caller, frame)
            if call in self._tagged:
                self._tagged.discard(call)  # its caller says when
            else:
                self.acknowledge(call)
        elif kind is Kind.CREDIT:
            caller.credit(frame.stream, frames.credit_amount(frame))
        elif kind is Kind.EVENT:
            caller.event(frame.payload)
        else:
            raise WireError(f"cannot read {kind.name} from an answerer")

    def _take_hello(self, frame: Frame) -> None:
        if frame.call or (self._greeted and self._successor is None):
            raise WireError("cannot read a second HELLO")
        self._greeted = True
        if self._successor is not None:
            # the first hello of its life names no edge, and nothing of an earlier one can follow it
            self._heard = _read_map(frame).get("epoch") in (None, "", self._successor.epoch)
        if not self.ready.done():  # whoever waited may have been canceled
            self.ready.set_result(None)

    def _take_known(self, frame: Frame) -> None:
        """Init names a call of an earlier edge; its DATA and its answer follow as of any call."""
        if self._successor is None:
            return
        news = _read_map(frame)
        tag, running = news.get("known"), news.get("running")
        if not isinstance(tag, str) or not isinstance(running, bool) or len(self._callers) > MAX_KNOWN:
            raise WireError(f"cannot read what init knows of call {frame.call}")
        answerer = ChannelCall(self, frame.call, streaming=False, tagged=bool(tag))
        self._callers[frame.call] = Unheard(answerer)  # known from here on: it may be canceled at once
        caller = self._successor.on_known(tag, running, answerer)
        if caller is not None:
            self._callers[frame.call] = caller
            if tag:
                self._tagged.add(frame.call)

    @staticmethod
    def _deliver(caller: Caller, frame: Frame) -> None:
        if frame.kind is Kind.RESULT:
            caller.result(frame.payload)
        else:
            caller.error(frame.payload)

    def _send_acks(self) -> None:
        self._ack_timer = None
        acks, self._acks = self._acks, []
        for call in acks:
            self._send(frames.encode(Kind.ACK, call))


def _read_map(frame: Frame) -> dict[str, Any]:
    try:
        return _decode(frame.payload)
    except msgspec.DecodeError as error:
        raise WireError(f"cannot read {frame.kind.name}: {error}") from None


def ended_error(sandbox: str, message: str, **details: Any) -> SandboxFailedError:
    """What calls get of a sandbox that ended by itself."""
    return SandboxFailedError(f"cannot use sandbox {sandbox}: {message}", sandbox=sandbox, **details)
