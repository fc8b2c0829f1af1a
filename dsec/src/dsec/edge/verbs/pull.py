"""image.pull."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.edge.tasks import answer_by_task
from libdsec.protocol.images import ImagePullRequest

from .arguments import progress_to, read

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def pull(edge: Edge, request: Request, caller: Caller) -> Answerer:
    asked = read(request, ImagePullRequest)
    edge.require_open("pull an image")
    return answer_by_task(edge, edge.images.pull(asked, progress_to(caller)), caller, "image.pull")
