"""image.build, image.list, image.inspect, image.remove, image.verify."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dsec.bus import Answerer, Caller, Request
from dsec.edge.tasks import ANSWERED, answer_by_task
from libdsec.protocol.calls import Empty
from libdsec.protocol.environment import (
    ImageBuildRequest,
    ImageListRequest,
    ImageNameRequest,
    parse_ref,
)
from libdsec.protocol.errors import ConflictError

from .arguments import encode, progress_to, read
from .pages import fill_page

if TYPE_CHECKING:
    from dsec.edge.edge import Edge

MAX_NAMED = 20
"""Sandboxes in an error."""


class _Page(msgspec.Struct):
    """`ImageList` with its entries encoded already."""

    images: list[msgspec.Raw]
    next: str | None


def build(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, ImageBuildRequest)
    parse_ref(asked.ref)
    edge.require_open("build an image")
    return answer_by_task(edge, edge.images.build(asked, progress_to(caller)), caller, "image.build")


def list_images(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, ImageListRequest)
    if asked.store:
        return answer_by_task(edge, _list_shared(edge, asked.after), caller, "image.list")
    after = asked.after
    found = sorted(edge.images.list(), key=lambda image: image.ref)
    entries, following = fill_page((image.ref, image) for image in found if after is None or image.ref > after)
    caller.result(encode(_Page(entries, following)))
    return ANSWERED


async def _list_shared(edge: Edge, after: str | None) -> _Page:
    page = await edge.images.list_shared(after)
    entries, following = fill_page((image.ref, image) for image in page.images)
    return _Page(entries, following or page.next)


def inspect(edge: Edge, request: Request, caller: Caller) -> Answerer:
    caller.result(encode(edge.images.inspect(read(request, ImageNameRequest).ref)))
    return ANSWERED


def remove(edge: Edge, request: Request, caller: Caller) -> Answerer:
    ref = read(request, ImageNameRequest).ref
    return answer_by_task(edge, _remove(edge, ref), caller, "image.remove")


async def _remove(edge: Edge, ref: str) -> Empty:
    """Its layers may stay with other images; without its name a sandbox of it could not be packed any more."""
    if using := edge.registry.of_image(ref):
        raise ConflictError(
            f"cannot remove image {ref}: {len(using)} sandboxes are made of it, {using[0].id} among them; stop them "
            "first",
            ref=ref,
            sandboxes=[sandbox.id for sandbox in using[:MAX_NAMED]],
        )
    await edge.images.remove(ref)
    return Empty()


def verify(edge: Edge, request: Request, caller: Caller) -> Answerer:
    ref = read(request, ImageNameRequest).ref
    return answer_by_task(edge, edge.images.verify(ref), caller, "image.verify")
