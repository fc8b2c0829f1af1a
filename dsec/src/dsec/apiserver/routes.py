"""The one route table: method, permission, handler. Beside `libdsec.protocol.calls.METHODS`, name for name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from dsec.bus import Answerer, Caller, Request
from libdsec.protocol.calls import CreateRequest, Empty, ServerInfo
from libdsec.protocol.errors import InvalidArgumentError, SandboxNotFoundError, UnavailableError
from libdsec.protocol.frames import GENERATION
from libdsec.protocol.ids import edge_of, is_sandbox_id

from .service import Service

Handler = Callable[[Service, Request, Caller], Answerer]

READ, USE, ADMIN = "read", "use", "admin"


class Route(NamedTuple):
    permission: str
    handle: Handler


class _NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    """`Empty` as a request: what is not known is refused."""


class _Addressed(msgspec.Struct):
    """What every call to a sandbox has."""

    sandbox: str


_encode = msgspec.msgpack.Encoder().encode
_address = msgspec.msgpack.Decoder(_Addressed).decode
_create_request = msgspec.msgpack.Decoder(CreateRequest).decode
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


def _nothing(request: Request) -> None:
    try:
        _empty(request.args)
    except msgspec.DecodeError as error:
        raise InvalidArgumentError(f"cannot read the arguments of {request.method}: {error}") from None


ROUTES: dict[str, Route] = {
    "server.info": Route(READ, server_info),
    "server.shutdown": Route(ADMIN, server_shutdown),
    "node.doctor": Route(READ, to_own_edge),
    "sandbox.create": Route(USE, to_placed),
    "sandbox.inspect": Route(READ, to_sandbox),
    "sandbox.list": Route(READ, to_own_edge),
    "sandbox.stop": Route(USE, to_sandbox),
    "sandbox.logs": Route(READ, to_sandbox),
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
    "image.list": Route(READ, to_own_edge),
    "image.inspect": Route(READ, to_own_edge),
    "image.remove": Route(ADMIN, to_own_edge),
    "image.verify": Route(READ, to_own_edge),
}
