"""image.fetch, image.stats: data of images that lie in the shared store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dsec.bus import Answerer, Caller, Request
from dsec.edge.tasks import answer_by_task
from libdsec.protocol.environment import parse_ref
from libdsec.protocol.images import ImageFetchRequest, ImageStatsRequest

from .arguments import progress_to, read
from .pages import fill_page

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


class _Page(msgspec.Struct):
    """`ImageStatsAnswer` with its entries encoded already."""

    layers: list[msgspec.Raw]
    cache_bytes: int
    cache_limit: int
    next: str | None


def fetch(edge: Edge, request: Request, caller: Caller) -> Answerer:
    ref = read(request, ImageFetchRequest).ref
    parse_ref(ref)
    edge.require_open("fetch an image")
    return answer_by_task(edge, edge.images.fetch(ref, progress_to(caller)), caller, "image.fetch")


def stats(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, ImageStatsRequest)
    if asked.ref:
        parse_ref(asked.ref)
    return answer_by_task(edge, _stats(edge, asked), caller, "image.stats")


async def _stats(edge: Edge, asked: ImageStatsRequest) -> _Page:
    found = await edge.images.stats(asked.ref)
    entries = ((layer.layer, layer) for layer in found.layers if asked.after is None or layer.layer > asked.after)
    layers, following = fill_page(entries)
    return _Page(layers, found.cache_bytes, found.cache_limit, following)
