"""sandbox.diff: what a sandbox changed of its image. No step of its log: it is asked anew each time.

All of it is gathered in a file before the first of it is sent, since the sandbox may stand still until it is gathered,
and its reader take as long as it likes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request, as_dsec_error, encode_error
from dsec.commandlog.flow import Flow
from dsec.edge.packing import captured
from dsec.edge.sandbox import Sandbox
from dsec.edge.tasks import given_up
from libdsec.protocol.errors import DeadlineExceededError, SandboxStateError
from libdsec.protocol.frames import STDOUT
from libdsec.protocol.images import SandboxDiffRequest
from libdsec.protocol.lifecycle import Operation

from .arguments import encode, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge

_DOING = "see what was written"


def diff(edge: Edge, request: Request, caller: Caller) -> Answerer:
    """Looking is not using: the idle time goes on."""
    asked = read(request, SandboxDiffRequest)
    sandbox = edge.registry.get(asked.sandbox)
    edge.require_taking("sandbox.diff")
    sandbox.require(Operation.PACK, _DOING)
    flow = _Flow(caller)
    flow.task = edge.spawn(_answer(edge, sandbox, flow))
    return flow


class _Flow(Flow):
    """Its caller's end is the task's."""

    task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        super().cancel()
        if self.task is not None:
            # a task that is canceled before its first step never takes it, and would answer nobody
            asyncio.get_running_loop().call_soon(self.task.cancel)


async def _answer(edge: Edge, sandbox: Sandbox, flow: Flow) -> None:
    try:
        await _send(edge, sandbox, flow)
    except asyncio.CancelledError:
        flow.caller.error(encode_error(given_up(edge, "sandbox.diff")))
        raise
    except Exception as error:
        flow.caller.error(encode_error(as_dsec_error(error, "finish sandbox.diff")))


async def _send(edge: Edge, sandbox: Sandbox, flow: Flow) -> None:
    if (slot := sandbox.slot) is None:
        raise SandboxStateError(f"cannot {_DOING} in sandbox {sandbox.id}: it has no ids any more", sandbox=sandbox.id)
    async with edge.images.changes(sandbox.layers, slot.id_base, lambda: captured(edge, sandbox, _DOING)) as (
        count,
        batches,
    ):
        for batch in batches:
            if not await flow.send(STDOUT, batch):
                raise DeadlineExceededError("cannot finish sandbox.diff: its caller gave it up")
    flow.caller.result(encode(count))
