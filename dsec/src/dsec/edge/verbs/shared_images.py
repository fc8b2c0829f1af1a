"""image.publish, image.pin, image.gc: the shared store, and what this node keeps of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.tasks import answer_by_task
from libdsec.protocol.environment import parse_ref
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.images import ImageGcRequest, ImagePinRequest, ImagePublishRequest

from .arguments import progress_to, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def publish(edge: Edge, request: Request, caller: Caller) -> Answerer:
    ref = read(request, ImagePublishRequest).ref
    parse_ref(ref)
    edge.require_open("publish an image")
    return answer_by_task(edge, edge.images.publish(ref, progress_to(caller)), caller, "image.publish")


def pin(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, ImagePinRequest)
    parse_ref(asked.ref)
    return answer_by_task(edge, edge.images.pin(asked.ref, asked.pinned), caller, "image.pin")


def collect(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, ImageGcRequest)
    if asked.keep_bytes < 0:
        raise InvalidArgumentError(f"cannot keep {asked.keep_bytes} bytes: it must be 0 or more", field="keep_bytes")
    return answer_by_task(edge, edge.images.collect(asked.keep_bytes, asked.dry_run), caller, "image.gc")
