"""file.*: relayed to PID 1, which acts as the sandbox's user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsec.bus import Answerer, Caller, Request
from dsec.edge.resolve import resolve_file
from dsec.edge.steps import Plan, run_in_sandbox
from libdsec.protocol.lifecycle import Operation

from .arguments import read_any

if TYPE_CHECKING:
    from dsec.edge.edge import Edge

READS = frozenset({"file.read", "file.list", "file.archive", "file.stat"})
_WITH_INPUT = frozenset({"file.write", "file.extract"})


def operate(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read_any(request)
    sandbox = edge.registry.get(asked.sandbox)
    plan = Plan(
        request.method,
        Operation.FILES,
        "use files",
        lambda defaults: resolve_file(asked, defaults),
        gathers=request.method in _WITH_INPUT,
        harmless=is_harmless(request.method, asked),
        opaque="it was a watch" if request.method == "file.watch" else "",
    )
    return run_in_sandbox(edge, sandbox, request, asked, caller, plan)


def is_harmless(method: str, asked: Any) -> bool:
    """Begun and cut short, it may be done again from its beginning: a read, or a write that replaces the whole."""
    return method in READS or (method == "file.write" and not asked.append)
