"""image.history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.tasks import ANSWERED
from libdsec.protocol.environment import ImageNameRequest

from .arguments import encode, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def history(edge: Edge, request: Request, caller: Caller) -> Answerer:
    caller.result(encode(edge.images.history(read(request, ImageNameRequest).ref)))
    return ANSWERED
