"""log.read and log.output: the command log as its readers see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request
from dsec.commandlog import read_log, read_output
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.steps import LogOutputRequest, LogReadRequest

from .arguments import read as read_arguments

if TYPE_CHECKING:
    from dsec.edge.edge import Edge


def read(edge: Edge, request: Request, caller: Caller) -> Answerer:
    """Looking is not using: the idle time goes on. A scope without a log yet is an empty one."""
    asked = read_arguments(request, LogReadRequest)
    for field in ("after", "limit"):
        if getattr(asked, field) < 0:
            raise InvalidArgumentError(f"cannot use {field} below 0", field=field)
    return read_log(edge.log, asked, caller, edge.spawn)


def output(edge: Edge, request: Request, caller: Caller) -> Answerer:
    return read_output(edge.log, read_arguments(request, LogOutputRequest), caller, edge.spawn)
