"""file.*: relayed to PID 1, which acts as the sandbox's user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.resolve import resolve_file
from dsec.edge.steps import Plan, run_in_sandbox
from libdsec.protocol.lifecycle import Operation

from .arguments import read_any

if TYPE_CHECKING:
    from dsec.edge.edge import Edge

_HALF_DONE = frozenset({"file.write", "file.extract", "file.watch", "file.read", "file.archive", "file.list"})
"""Those with a stream: without their client nobody feeds or reads it."""


def operate(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read_any(request)
    sandbox = edge.registry.get(asked.sandbox)
    plan = Plan(
        request.method,
        Operation.FILES,
        "use files",
        lambda defaults: resolve_file(asked, defaults),
        streaming=request.method in _HALF_DONE,
        opaque="it was a watch" if request.method == "file.watch" else "",
    )
    return run_in_sandbox(edge, sandbox, request, asked, caller, plan)
