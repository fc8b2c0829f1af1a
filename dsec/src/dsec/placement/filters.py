"""The filters, each a name and a question of one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from libdsec.protocol.nodes import NodeStatus
from libdsec.protocol.spec import SandboxSpec


class Filter(NamedTuple):
    name: str
    passes: Callable[[NodeStatus, SandboxSpec], bool]


FILTERS: tuple[Filter, ...] = (
    Filter("healthy", lambda node, spec: node.healthy),
    Filter("backend", lambda node, spec: spec.backend in node.backends),
    Filter("memory", lambda node, spec: node.memory_requested + spec.requests.memory_bytes <= node.memory_bytes),
    Filter("pids", lambda node, spec: node.pids_requested + spec.requests.pids <= node.pids),
)
"""In order: the first that leaves no node is the one an error names."""
