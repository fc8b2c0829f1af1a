"""image.push."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.tasks import answer_by_task
from libdsec.protocol.environment import BuildProgress, parse_ref
from libdsec.protocol.images import ImagePushed, ImagePushRequest

from .arguments import encode, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def push(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, ImagePushRequest)
    parse_ref(asked.ref)
    edge.require_open("push an image")
    return answer_by_task(edge, _push(edge, asked, caller), caller, "image.push")


async def _push(edge: Edge, asked: ImagePushRequest, caller: Caller) -> ImagePushed:
    def progress(step: BuildProgress) -> None:
        caller.event(encode(step))

    return await edge.images.push(asked, progress)
