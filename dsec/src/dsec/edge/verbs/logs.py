"""sandbox.logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.tasks import ANSWERED
from libdsec.protocol.calls import LogAnswer, LogRequest
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.frames import MAX_PAYLOAD

from .arguments import encode, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def logs(edge: Edge, request: Request, caller: Caller) -> Answerer:
    """The last entries that fit into one frame. Looking is not using: the idle time goes on."""
    asked = read(request, LogRequest)
    if asked.limit < 1:
        raise InvalidArgumentError(f"cannot read {asked.limit} entries: the limit must be above 0", field="limit")
    entries = edge.registry.get(asked.sandbox).log.read(asked.limit)
    answer = encode(LogAnswer(entries))
    while len(answer) > MAX_PAYLOAD:
        entries = entries[len(entries) // 2 + 1 :]
        answer = encode(LogAnswer(entries))
    caller.result(answer)
    return ANSWERED
