"""node.status (of the rooms among themselves) and node.doctor."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.tasks import ANSWERED, answer_by_task
from libdsec.protocol.nodes import DoctorReport

from .arguments import encode, read_any

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def status(edge: Edge, request: Request, caller: Caller) -> Answerer:
    caller.result(encode(edge.status()))
    return ANSWERED


def doctor(edge: Edge, request: Request, caller: Caller) -> Answerer:
    read_any(request)
    return answer_by_task(edge, _doctor(edge), caller, "node.doctor")


async def _doctor(edge: Edge) -> DoctorReport:
    return await asyncio.to_thread(edge.probe)
