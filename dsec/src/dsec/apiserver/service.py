"""What the routes share: who may, where to, and the node's own answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dsec.bus import Bus
from libdsec.protocol.nodes import NodeStatus
from libdsec.protocol.spec import SandboxSpec


class PrincipalLike(Protocol):
    """A principal as iam names it."""

    @property
    def name(self) -> str: ...

    def require(self, permission: str, method: str) -> None:
        """:raises PermissionDeniedError: it does not hold the permission."""


Authenticate = Callable[[int, int, int], PrincipalLike]
"""(pid, uid, gid) of a peer → its principal, or raises PermissionDeniedError."""


@dataclass(slots=True)
class Service:
    """Wired by `dsec.serve`; rooms it does not know stand behind these callables."""

    bus: Bus
    authenticate: Authenticate
    place: Callable[[SandboxSpec], str]
    """The prefix of the edge that takes a sandbox; raises NoEligibleNodeError."""
    quota: Callable[[str, SandboxSpec], None]
    """(principal, spec): raises QuotaExceededError. Asked at every create."""
    own_edge: str
    """Prefix of the edge that calls without a sandbox go to."""
    node_status: Callable[[], NodeStatus]
    request_shutdown: Callable[[], None]
    """Begin to end the server; returns at once."""
    request_drain: Callable[[float], None]
    """Begin to end the server within so many seconds, its sandboxes left running; returns at once."""
    version: str
    server_pid: int
    connections: set[object] = field(default_factory=set)
    """Those open now."""
