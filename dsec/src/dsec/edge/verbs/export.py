"""image.export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.image_streams import Stream, stream
from libdsec.protocol.calls import Empty
from libdsec.protocol.environment import parse_ref
from libdsec.protocol.images import ImageExportRequest

from .arguments import read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def export(edge: Edge, request: Request, caller: Caller) -> Answerer:
    ref = read(request, ImageExportRequest).ref
    parse_ref(ref)
    edge.require_open("export an image")

    async def send(out: Stream) -> Empty:
        await edge.images.bring((ref,))
        await out.send(edge.images.export(ref, out.tick))
        return Empty()

    return stream(edge, caller, "image.export", send)
