"""file.*: relayed to PID 1, which acts as the sandbox's user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.relay import Relay, open_call
from dsec.edge.resolve import resolve_file
from libdsec.protocol.lifecycle import Operation

from .arguments import read_any

if TYPE_CHECKING:
    from dsec.edge.edge import Edge

_HALF_DONE = frozenset({"file.write", "file.extract", "file.watch", "file.read", "file.archive", "file.list"})
"""Those with a stream: without their client nobody feeds or reads it."""


def operate(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read_any(request)
    sandbox = edge.registry.get(asked.sandbox)
    instance = sandbox.require(Operation.FILES, "use files")
    args = resolve_file(asked, sandbox.running_defaults)
    relay = Relay(sandbox, caller, edge.clock, request.method, None)
    return open_call(sandbox, relay, instance.call, request.method, args, streaming=request.method in _HALF_DONE)
