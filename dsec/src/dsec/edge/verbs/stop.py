"""sandbox.stop: for good. Answers when everything was given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge import ending
from dsec.edge.sandbox import Sandbox
from dsec.edge.steps import run_as_task
from libdsec.protocol.calls import SandboxRequest
from libdsec.protocol.spec import SandboxInfo

from .arguments import read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def stop(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, SandboxRequest)
    sandbox = edge.registry.get(asked.sandbox)
    return run_as_task(
        edge, sandbox.scope, sandbox, request, asked, caller, lambda _: _stop(edge, sandbox), even_unrecorded=True
    )


async def _stop(edge: Edge, sandbox: Sandbox) -> SandboxInfo:
    await ending.stop(edge, sandbox, "client")
    return sandbox.info()
