"""sandbox.inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.sandbox import Sandbox
from dsec.edge.steps import run_as_task
from dsec.edge.tasks import ANSWERED
from libdsec.protocol.calls import SandboxRequest
from libdsec.protocol.spec import SandboxInfo

from .arguments import encode, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def inspect(edge: Edge, request: Request, caller: Caller) -> Answerer:
    """Looking is not using: the idle time goes on. It is a step where its client numbers it: what a program saw, it
    sees again."""
    asked = read(request, SandboxRequest)
    sandbox = edge.registry.get(asked.sandbox)
    if request.step is not None and request.step.n > 0:
        return run_as_task(edge, sandbox.scope, sandbox, request, asked, caller, lambda _: _look(sandbox))
    caller.result(encode(sandbox.info()))
    return ANSWERED


async def _look(sandbox: Sandbox) -> SandboxInfo:
    return sandbox.info()
