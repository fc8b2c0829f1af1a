"""exec: one command, relayed to PID 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.eventlog import shortened
from dsec.edge.resolve import resolve_exec
from dsec.edge.steps import Plan, run_in_sandbox
from libdsec.protocol.exec import ExecRequest
from libdsec.protocol.lifecycle import Operation

from .arguments import read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def execute(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, ExecRequest)
    sandbox = edge.registry.get(asked.sandbox)
    plan = Plan(
        "exec",
        Operation.EXEC,
        "run a command",
        lambda defaults: resolve_exec(asked, defaults),
        opaque=_opaque(asked),
        gathers=asked.stdin and not (asked.stream or asked.pty),
        event="exec",
        detail={"argv": shortened(" ".join(asked.argv[:8]))},
    )
    return run_in_sandbox(edge, sandbox, request, asked, caller, plan)


def _opaque(asked: ExecRequest) -> str:
    if asked.pty:
        return "it was a terminal"
    if asked.stream:
        return "its output was read while it ran"
    return ""
