"""image.fetch, image.stats: data of images that lie in the shared store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.tasks import answer_by_task
from libdsec.protocol.environment import BuildProgress, ImageInfo, parse_ref
from libdsec.protocol.images import ImageFetchRequest, ImageStatsRequest

from .arguments import encode, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def fetch(edge: Edge, request: Request, caller: Caller) -> Answerer:
    ref = read(request, ImageFetchRequest).ref
    parse_ref(ref)
    edge.require_open("fetch an image")
    return answer_by_task(edge, _fetch(edge, ref, caller), caller, "image.fetch")


async def _fetch(edge: Edge, ref: str, caller: Caller) -> ImageInfo:
    def progress(step: BuildProgress) -> None:
        caller.event(encode(step))

    return await edge.images.fetch(ref, progress)


def stats(edge: Edge, request: Request, caller: Caller) -> Answerer:
    ref = read(request, ImageStatsRequest).ref
    if ref:
        parse_ref(ref)
    return answer_by_task(edge, edge.images.stats(ref), caller, "image.stats")
