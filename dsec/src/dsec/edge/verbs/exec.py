"""exec: one command, relayed to PID 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.eventlog import shortened
from dsec.edge.relay import Relay, open_call
from dsec.edge.resolve import resolve_exec
from libdsec.protocol.exec import ExecRequest
from libdsec.protocol.lifecycle import Operation

from .arguments import read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def execute(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, ExecRequest)
    sandbox = edge.registry.get(asked.sandbox)
    instance = sandbox.require(Operation.EXEC, "run a command")
    args = resolve_exec(asked, sandbox.running_defaults)
    relay = Relay(sandbox, caller, edge.clock, "exec", {"argv": shortened(" ".join(asked.argv[:8]))})
    relay.limit(args.timeout_ms)
    # what has input or shows its output as it comes makes no sense without its client
    return open_call(sandbox, relay, instance.call, "exec", args, streaming=args.stream or args.stdin)
