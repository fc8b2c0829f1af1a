"""session.open, session.run, session.close: a shell that stays, relayed to PID 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.eventlog import shortened
from dsec.edge.relay import Relay, open_call
from dsec.edge.resolve import resolve_run, resolve_session
from libdsec.protocol.exec import SessionCloseRequest, SessionOpenRequest, SessionRunRequest
from libdsec.protocol.lifecycle import Operation

from .arguments import read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def open_session(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, SessionOpenRequest)
    sandbox = edge.registry.get(asked.sandbox)
    instance = sandbox.require(Operation.EXEC, "open a session")
    args = resolve_session(asked, sandbox.running_defaults)
    relay = Relay(sandbox, caller, edge.clock, "session", {"shell": shortened(" ".join(asked.shell))})
    return open_call(sandbox, relay, instance.call, "session.open", args, streaming=False)


def run(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, SessionRunRequest)
    sandbox = edge.registry.get(asked.sandbox)
    instance = sandbox.require(Operation.EXEC, "run a command")
    args = resolve_run(asked)
    detail = {"session": asked.session, "command": shortened(asked.command)}
    relay = Relay(sandbox, caller, edge.clock, "exec", detail)
    relay.limit(args.timeout_ms)
    return open_call(sandbox, relay, instance.call, "session.run", args, streaming=False)


def close(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, SessionCloseRequest)
    sandbox = edge.registry.get(asked.sandbox)
    instance = sandbox.require(Operation.EXEC, "close a session")
    relay = Relay(sandbox, caller, edge.clock, "session", {"closed": asked.session})
    return open_call(sandbox, relay, instance.call, "session.close", {"session": asked.session}, streaming=False)
