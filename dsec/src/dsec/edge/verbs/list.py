"""sandbox.list: in pages, by id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dsec.bus import Answerer, Caller, Request
from dsec.edge.sandbox import Sandbox
from dsec.edge.tasks import ANSWERED
from libdsec.protocol.calls import SandboxListRequest

from .arguments import encode, read
from .pages import fill_page

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


class _Page(msgspec.Struct):
    """`SandboxList` with its entries encoded already."""

    sandboxes: list[msgspec.Raw]
    next: str | None


def list_sandboxes(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, SandboxListRequest)
    known = edge.registry.everything() if asked.include_final else edge.registry.live()
    chosen = sorted((s for s in known if _matches(s, asked)), key=lambda s: s.id)
    entries, following = fill_page((sandbox.id, sandbox.info()) for sandbox in chosen)
    caller.result(encode(_Page(entries, following)))
    return ANSWERED


def _matches(sandbox: Sandbox, asked: SandboxListRequest) -> bool:
    if asked.after is not None and sandbox.id <= asked.after:
        return False
    if sandbox.final and not asked.include_final:
        return False
    if asked.job is not None and sandbox.job != asked.job:
        return False
    if asked.rollout is not None and sandbox.spec.rollout != asked.rollout:
        return False
    labels = sandbox.spec.labels
    return all(labels.get(name) == value for name, value in asked.labels.items())
