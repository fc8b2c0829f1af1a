"""session.open, session.run, session.close: a shell that stays, relayed to PID 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.eventlog import shortened
from dsec.edge.resolve import resolve_run, resolve_session
from dsec.edge.steps import Plan, run_in_sandbox
from libdsec.protocol.exec import SessionCloseRequest, SessionOpenRequest, SessionRunRequest
from libdsec.protocol.lifecycle import Operation

from .arguments import read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def open_session(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, SessionOpenRequest)
    plan = Plan(
        "session.open",
        Operation.EXEC,
        "open a session",
        lambda defaults: resolve_session(asked, defaults),
        event="session",
        detail={"shell": shortened(" ".join(asked.shell))},
    )
    return run_in_sandbox(edge, edge.registry.get(asked.sandbox), request, asked, caller, plan)


def run(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, SessionRunRequest)
    plan = Plan(
        "session.run",
        Operation.EXEC,
        "run a command",
        lambda _: resolve_run(asked),
        event="exec",
        detail={"session": asked.session, "command": shortened(asked.command)},
    )
    return run_in_sandbox(edge, edge.registry.get(asked.sandbox), request, asked, caller, plan)


def close(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, SessionCloseRequest)
    plan = Plan(
        "session.close",
        Operation.EXEC,
        "close a session",
        lambda _: {"session": asked.session},
        event="session",
        detail={"closed": asked.session},
    )
    return run_in_sandbox(edge, edge.registry.get(asked.sandbox), request, asked, caller, plan)
