"""image.push."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.tasks import answer_by_task
from libdsec.protocol.environment import parse_ref
from libdsec.protocol.images import ImagePushRequest

from .arguments import progress_to, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def push(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, ImagePushRequest)
    parse_ref(asked.ref)
    edge.require_open("push an image")
    return answer_by_task(edge, edge.images.push(asked, progress_to(caller)), caller, "image.push")
