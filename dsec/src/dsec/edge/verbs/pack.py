"""sandbox.pack_diff: what a sandbox has written, as a layer of a new image. A step of its log: said again it answers
the same, and an image that it published before a server died in it is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.commandlog import OpenStep
from dsec.edge.packing import captured
from dsec.edge.sandbox import Sandbox
from dsec.edge.steps import run_as_task
from dsec.store.pack.order import Packing
from libdsec.protocol.environment import parse_ref
from libdsec.protocol.errors import SandboxStateError
from libdsec.protocol.images import PackDiffRequest, PackedDiff
from libdsec.protocol.lifecycle import Operation

from .arguments import progress_to, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge

_DOING = "pack what was written"


def pack_diff(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, PackDiffRequest)
    parse_ref(asked.ref)
    sandbox = edge.registry.get(asked.sandbox)
    return run_as_task(
        edge, sandbox.scope, sandbox, request, asked, caller, lambda step: _pack(edge, sandbox, asked, step, caller)
    )


async def _pack(edge: Edge, sandbox: Sandbox, asked: PackDiffRequest, step: OpenStep, caller: Caller) -> PackedDiff:
    sandbox.require(Operation.PACK, _DOING)
    if (slot := sandbox.slot) is None:
        raise SandboxStateError(f"cannot {_DOING} in sandbox {sandbox.id}: it has no ids any more", sandbox=sandbox.id)
    maker = f"{sandbox.id} {step.track}#{step.n} {step.digest.hex()}"
    packing = Packing(asked, sandbox.spec, sandbox.layers, slot.id_base, maker)
    answer = await edge.images.pack(packing, lambda: captured(edge, sandbox, _DOING), progress_to(caller))
    now = edge.clock.now()
    sandbox.log.add(now, "packed", {"image": asked.ref, "frozen_ms": answer.frozen_ms})
    sandbox.touch(now, edge.clock.monotonic())
    return answer
