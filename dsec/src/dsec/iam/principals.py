"""Principals of one node: known by the uid that the kernel vouches for."""

from __future__ import annotations

import enum
from typing import NamedTuple

from libdsec.protocol.errors import PermissionDeniedError


class Permission(enum.StrEnum):
    READ = "read"
    """Look: inspect, list, logs, images."""
    USE = "use"
    """Make sandboxes, run in them, stop them."""
    ADMIN = "admin"
    """Build and remove images, end the server."""


class Peer(NamedTuple):
    """The other end of a Unix socket (SO_PEERCRED)."""

    pid: int
    uid: int
    gid: int


class Principal(NamedTuple):
    name: str
    permissions: frozenset[Permission]

    def require(self, permission: str, method: str) -> None:
        """:raises PermissionDeniedError: it does not hold the permission."""
        if permission not in self.permissions:
            raise PermissionDeniedError(
                f"cannot call {method}: {self.name} lacks the permission {permission!r}",
                principal=self.name,
                permission=permission,
            )


class Authority:
    """Names the principal behind a peer."""

    def __init__(self, own_uid: int) -> None:
        self._admins = frozenset({0, own_uid})

    def authenticate(self, peer: Peer) -> Principal:
        """:raises PermissionDeniedError: neither root nor the server's own user."""
        if peer.uid not in self._admins:
            raise PermissionDeniedError(
                f"cannot use this node: uid {peer.uid} is neither root nor the user that runs the server", uid=peer.uid
            )
        return Principal(f"uid:{peer.uid}", frozenset(Permission))
