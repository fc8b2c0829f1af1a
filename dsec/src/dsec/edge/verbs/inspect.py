"""sandbox.inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.tasks import ANSWERED
from libdsec.protocol.calls import SandboxRequest

from .arguments import encode, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def inspect(edge: Edge, request: Request, caller: Caller) -> Answerer:
    """Looking is not using: the idle time goes on."""
    asked = read(request, SandboxRequest)
    caller.result(encode(edge.registry.get(asked.sandbox).info()))
    return ANSWERED
