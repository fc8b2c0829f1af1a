"""image.diff."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from dsec.bus import Answerer, Caller, Request
from dsec.edge.image_streams import Stream, stream
from libdsec.protocol.environment import parse_ref
from libdsec.protocol.images import Change, ChangeCount, ImageDiffRequest

from .arguments import encode, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge

FRAME_BYTES = 32 * 1024
"""Of one array, but for a single change that is longer."""


def diff(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, ImageDiffRequest)
    for ref in (asked.a, asked.b):
        parse_ref(ref)

    async def send(out: Stream) -> ChangeCount:
        counts: Counter[str] = Counter()
        await edge.images.bring((asked.a, asked.b))
        await out.send_frames(_frames(edge.images.diff(asked.a, asked.b, out.tick), counts))
        return ChangeCount(counts["added"], counts["changed"], counts["removed"])

    return stream(edge, caller, "image.diff", send)


def _frames(changes: Generator[Change, None, None], counts: Counter[str]) -> Generator[bytes, None, None]:
    """Arrays of changes, which are counted."""
    with closing(changes):
        size = 0
        array: list[msgspec.Raw] = []
        for change in _counted(changes, counts):
            encoded = encode(change)
            if array and size + len(encoded) > FRAME_BYTES:
                yield encode(array)
                array, size = [], 0
            array.append(msgspec.Raw(encoded))
            size += len(encoded)
        if array:
            yield encode(array)


def _counted(changes: Iterable[Change], counts: Counter[str]) -> Iterable[Change]:
    for change in changes:
        counts[change.kind] += 1
        yield change
