"""sandbox.stop: for good. Answers when everything was given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge import ending
from dsec.edge.sandbox import Sandbox
from dsec.edge.tasks import ANSWERED, answer_by_task
from libdsec.protocol.calls import SandboxRequest
from libdsec.protocol.spec import SandboxInfo

from .arguments import encode, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def stop(edge: Edge, request: Request, caller: Caller) -> Answerer:
    sandbox = edge.registry.get(read(request, SandboxRequest).sandbox)
    if sandbox.final and (sandbox.ending is None or sandbox.ending.done()):
        caller.result(encode(sandbox.info()))
        return ANSWERED
    return answer_by_task(edge.spawn, _stop(edge, sandbox), caller, "sandbox.stop")


async def _stop(edge: Edge, sandbox: Sandbox) -> SandboxInfo:
    await ending.stop(edge, sandbox, "client")
    return sandbox.info()
