"""Filter, then rank by power of k choices."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from libdsec.protocol.errors import NoEligibleNodeError, UnsupportedOperationError
from libdsec.protocol.nodes import NodeStatus
from libdsec.protocol.spec import SandboxSpec

from .filters import FILTERS

CHOICES = 2
"""k: how many of the eligible nodes are compared."""


def _fullness(node: NodeStatus) -> float:
    """The share of the scarcer resource that is taken."""
    return max(node.memory_requested / max(node.memory_bytes, 1), node.pids_requested / max(node.pids, 1))


def place(nodes: Sequence[NodeStatus], spec: SandboxSpec, draw: random.Random) -> NodeStatus:
    """The node that takes the sandbox.

    :raises NoEligibleNodeError: its details name the filter that left none.
    :raises UnsupportedOperationError: no node of the fleet has the backend, whatever its state.
    """
    left = list(nodes)
    if not left:
        raise NoEligibleNodeError("cannot place a sandbox: no node is known", filter="known", nodes=0)
    offered = {backend for node in nodes for backend in node.backends}
    if spec.backend not in offered:
        raise UnsupportedOperationError(
            f"cannot make a sandbox of backend {spec.backend!r}: the nodes offer {', '.join(sorted(offered))}",
            option="backend",
        )
    for name, passes in FILTERS:
        before = left
        left = [node for node in before if passes(node, spec)]
        if not left:
            reasons = sorted({node.reason for node in before if node.reason and not node.healthy})
            raise NoEligibleNodeError(
                f"cannot place a sandbox: the filter {name!r} left none of {len(before)} nodes"
                + (f" ({'; '.join(reasons)})" if name == "healthy" and reasons else ""),
                filter=name,
                nodes=len(before),
            )
    candidates = left if len(left) <= CHOICES else draw.sample(left, CHOICES)
    return min(candidates, key=_fullness)


class Placement:
    """A placer with a view of the fleet."""

    def __init__(self, view: Callable[[], Sequence[NodeStatus]], draw: random.Random | None = None) -> None:
        self._view = view
        self._draw = draw or random.Random()
        self._seen: Sequence[NodeStatus] = ()
        self._placed: dict[str, tuple[int, int]] = {}

    def place(self, spec: SandboxSpec) -> str:
        """The prefix of the edge that takes the sandbox.

        :raises NoEligibleNodeError: see `place`.
        """
        view = self._view()
        if view is not self._seen:
            self._seen, self._placed = view, {}
        node = place([self._overlaid(n) for n in view] if self._placed else view, spec, self._draw)
        memory, pids = self._placed.get(node.edge_prefix, (0, 0))
        self._placed[node.edge_prefix] = (memory + spec.requests.memory_bytes, pids + spec.requests.pids)
        return node.edge_prefix

    def _overlaid(self, node: NodeStatus) -> NodeStatus:
        placed = self._placed.get(node.edge_prefix)
        if placed is None:
            return node
        return msgspec.structs.replace(
            node, memory_requested=node.memory_requested + placed[0], pids_requested=node.pids_requested + placed[1]
        )
