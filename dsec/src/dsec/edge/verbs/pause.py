"""sandbox.pause and sandbox.resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge import pausing
from dsec.edge.sandbox import Sandbox
from dsec.edge.steps import run_as_task
from libdsec.protocol.calls import SandboxRequest
from libdsec.protocol.spec import SandboxInfo

from .arguments import read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def pause(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, SandboxRequest)
    sandbox = edge.registry.get(asked.sandbox)
    return run_as_task(edge, sandbox.scope, sandbox, request, asked, caller, lambda _: _pause(edge, sandbox))


async def _pause(edge: Edge, sandbox: Sandbox) -> SandboxInfo:
    await pausing.pause(edge, sandbox, "client")
    return sandbox.info()


def resume(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, SandboxRequest)
    sandbox = edge.registry.get(asked.sandbox)
    return run_as_task(edge, sandbox.scope, sandbox, request, asked, caller, lambda _: _resume(edge, sandbox))


async def _resume(edge: Edge, sandbox: Sandbox) -> SandboxInfo:
    await pausing.resume(edge, sandbox, "client")
    sandbox.touch(edge.clock.now(), edge.clock.monotonic())
    return sandbox.info()
