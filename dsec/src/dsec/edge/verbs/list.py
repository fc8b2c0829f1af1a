"""sandbox.list: in pages, by id, so that sandboxes that come and go meanwhile move no page's border."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dsec.bus import Answerer, Caller, Request
from dsec.edge.sandbox import Sandbox
from dsec.edge.tasks import ANSWERED
from libdsec.protocol.calls import SandboxListRequest
from libdsec.protocol.frames import MAX_PAYLOAD

from .arguments import encode, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge

PAGE_BYTES = MAX_PAYLOAD - 1024


class _Page(msgspec.Struct):
    """`SandboxList` with its entries encoded already."""

    sandboxes: list[msgspec.Raw]
    next: str | None = None


def list_sandboxes(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, SandboxListRequest)
    known = edge.registry.everything() if asked.include_final else edge.registry.live()
    chosen = sorted((s for s in known if _matches(s, asked)), key=lambda s: s.id)
    page = _Page([])
    size = 0
    for sandbox in chosen:
        entry = encode(sandbox.info())
        if page.sandboxes and size + len(entry) > PAGE_BYTES:
            break
        size += len(entry)
        page.sandboxes.append(msgspec.Raw(entry))
    if len(page.sandboxes) < len(chosen):
        page.next = chosen[len(page.sandboxes) - 1].id
    caller.result(encode(page))
    return ANSWERED


def _matches(sandbox: Sandbox, asked: SandboxListRequest) -> bool:
    if asked.after is not None and sandbox.id <= asked.after:
        return False
    if sandbox.final and not asked.include_final:
        return False
    labels = sandbox.spec.labels
    return all(labels.get(name) == value for name, value in asked.labels.items())
