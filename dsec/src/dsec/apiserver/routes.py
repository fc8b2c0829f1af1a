"""The one route table: method, permission, handler. Beside `libdsec.protocol.calls.METHODS`, name for name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from dsec.bus import Answerer, Caller, Request
from libdsec.protocol.calls import CreateRequest, DrainRequest, Empty, ServerInfo
from libdsec.protocol.errors import InvalidArgumentError, SandboxNotFoundError, UnavailableError
from libdsec.protocol.frames import GENERATION
from libdsec.protocol.ids import edge_of, is_sandbox_id

from .service import Service

Handler = Callable[[Service, Request, Caller], Answerer]

READ, USE, ADMIN = "read", "use", "admin"

MAX_DRAIN_S = 86_400.0


def _nothing_more(args: msgspec.Raw) -> str | None:
    return None


class Route(NamedTuple):
    permission: str
    handle: Handler
    further: Callable[[msgspec.Raw], str | None] = _nothing_more
    """A permission that the arguments ask for beside."""


class _NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    """`Empty` as a request: what is not known is refused."""


class _Addressed(msgspec.Struct):
    """What every call to a sandbox has."""

    sandbox: str


_encode = msgspec.msgpack.Encoder().encode
_address = msgspec.msgpack.Decoder(_Addressed).decode
_create_request = msgspec.msgpack.Decoder(CreateRequest).decode
_drain_request = msgspec.msgpack.Decoder(DrainRequest).decode
_empty = msgspec.msgpack.Decoder(_NoArguments).decode


class Answered:
    """The answering end of a call that was answered at once."""

    def data(self, stream: int, payload: bytes, flags: int) -> None: ...

    def credit(self, stream: int, amount: int) -> None: ...

    def event(self, payload: bytes) -> None: ...

    def cancel(self) -> None: ...

    def abandon(self) -> None: ...


ANSWERED = Answered()


def to_sandbox(service: Service, request: Request, caller: Caller) -> Answerer:
    """To the edge that the sandbox's id names."""
    try:
        sandbox = _address(request.args).sandbox
    except msgspec.DecodeError as error:
        raise InvalidArgumentError(f"cannot read the arguments of {request.method}: {error}") from None
    if is_sandbox_id(sandbox):
        try:
            return service.bus.call("edge." + edge_of(sandbox), request, caller)
        except UnavailableError:
            pass  # nobody has that prefix
    raise SandboxNotFoundError(f"cannot find sandbox {sandbox[:64]!r}: no node has such an id", sandbox=sandbox[:64])


def to_placed(service: Service, request: Request, caller: Caller) -> Answerer:
    """To the edge that placement names."""
    try:
        spec = _create_request(request.args).spec
    except msgspec.DecodeError as error:
        raise InvalidArgumentError(f"cannot read the arguments of {request.method}: {error}") from None
    service.quota(request.principal, spec)
    return service.bus.call("edge." + service.place(spec), request, caller)


def of_create(args: msgspec.Raw) -> str | None:
    """The node's own network is for those who may build; what cannot be read is refused by the handler."""
    try:
        return ADMIN if _create_request(args).spec.network == "host" else None
    except msgspec.DecodeError:
        return None


def to_own_edge(service: Service, request: Request, caller: Caller) -> Answerer:
    """To the edge of this process. With more than one node lists will ask all of them."""
    return service.bus.call("edge." + service.own_edge, request, caller)


def server_info(service: Service, request: Request, caller: Caller) -> Answerer:
    _nothing(request)
    caller.result(_encode(ServerInfo(service.version, GENERATION, service.server_pid, service.node_status())))
    return ANSWERED


def server_shutdown(service: Service, request: Request, caller: Caller) -> Answerer:
    """Answered when the end has begun; the connection closes when it is done."""
    _nothing(request)
    service.request_shutdown()
    caller.result(_encode(Empty()))
    return ANSWERED


def server_drain(service: Service, request: Request, caller: Caller) -> Answerer:
    """Answered when the draining has begun; the connection closes when it is done."""
    try:
        asked = _drain_request(request.args)
    except msgspec.DecodeError as error:
        raise InvalidArgumentError(f"cannot read the arguments of {request.method}: {error}") from None
    if not 0 <= asked.timeout_s <= MAX_DRAIN_S:
        raise InvalidArgumentError(
            f"cannot drain for {asked.timeout_s} s: it must be 0 to {MAX_DRAIN_S}", field="timeout_s"
        )
    service.request_drain(asked.timeout_s)
    caller.result(_encode(Empty()))
    return ANSWERED


def _nothing(request: Request) -> None:
    try:
        _empty(request.args)
    except msgspec.DecodeError as error:
        raise InvalidArgumentError(f"cannot read the arguments of {request.method}: {error}") from None


ROUTES: dict[str, Route] = {
    "server.info": Route(READ, server_info),
    "server.shutdown": Route(ADMIN, server_shutdown),
    "server.drain": Route(ADMIN, server_drain),
    "node.doctor": Route(READ, to_own_edge),
    "sandbox.create": Route(USE, to_placed, of_create),
    "sandbox.inspect": Route(READ, to_sandbox),
    "sandbox.list": Route(READ, to_own_edge),
    "sandbox.stop": Route(USE, to_sandbox),
    "sandbox.logs": Route(READ, to_sandbox),
    "sandbox.pause": Route(USE, to_sandbox),
    "sandbox.resume": Route(USE, to_sandbox),
    "sandbox.pack_diff": Route(USE, to_sandbox),
    "sandbox.diff": Route(USE, to_sandbox),
    "log.read": Route(READ, to_own_edge),
    "log.output": Route(READ, to_own_edge),
    "lease.take": Route(USE, to_own_edge),
    "lease.renew": Route(USE, to_own_edge),
    "lease.release": Route(USE, to_own_edge),
    "rollout.list": Route(READ, to_own_edge),
    "job.list": Route(READ, to_own_edge),
    "job.inspect": Route(READ, to_own_edge),
    "job.pause": Route(USE, to_own_edge),
    "job.resume": Route(USE, to_own_edge),
    "job.stop": Route(USE, to_own_edge),
    "exec": Route(USE, to_sandbox),
    "session.open": Route(USE, to_sandbox),
    "session.run": Route(USE, to_sandbox),
    "session.close": Route(USE, to_sandbox),
    "file.stat": Route(USE, to_sandbox),
    "file.mkdir": Route(USE, to_sandbox),
    "file.remove": Route(USE, to_sandbox),
    "file.archive": Route(USE, to_sandbox),
    "file.read": Route(USE, to_sandbox),
    "file.write": Route(USE, to_sandbox),
    "file.move": Route(USE, to_sandbox),
    "file.list": Route(USE, to_sandbox),
    "file.extract": Route(USE, to_sandbox),
    "file.watch": Route(USE, to_sandbox),
    "image.build": Route(ADMIN, to_own_edge),
    "image.pull": Route(ADMIN, to_own_edge),
    "image.list": Route(READ, to_own_edge),
    "image.inspect": Route(READ, to_own_edge),
    "image.remove": Route(ADMIN, to_own_edge),
    "image.verify": Route(READ, to_own_edge),
    "image.push": Route(ADMIN, to_own_edge),
    "image.export": Route(USE, to_own_edge),
    "image.diff": Route(USE, to_own_edge),
    "image.history": Route(READ, to_own_edge),
    "image.fetch": Route(ADMIN, to_own_edge),
    "image.stats": Route(READ, to_own_edge),
    "image.publish": Route(ADMIN, to_own_edge),
    "image.pin": Route(ADMIN, to_own_edge),
    "image.gc": Route(ADMIN, to_own_edge),
}
