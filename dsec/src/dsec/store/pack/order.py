"""What is packed or listed, for whom, and where it lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from libdsec.protocol.images import PackDiffRequest
from libdsec.protocol.spec import SandboxSpec


@dataclass(frozen=True)
class Packing:
    """What is to be packed, as what, by whom."""

    asked: PackDiffRequest
    spec: SandboxSpec
    layers: tuple[str, ...]
    """Digests of the sandbox's, lowest first."""
    id_base: int
    """What every id in its upper is shifted by."""
    maker: str
    """Names the step that asks: said again it is the same, and no other's is."""


@dataclass(frozen=True)
class Upper:
    """Where it lies, for as long as it may be read."""

    path: str
    since: float | None
    """By `time.monotonic`: the sandbox stands still for us. None: it does not."""
    check: Callable[[], None]
    """Called often; raises where the layer is not wanted any more, or what is read cannot be trusted."""
    done: Callable[[], None]
    """Called once it has been read: the sandbox may go on."""
    stood_ms: float = 0.0
    """For how long it stood still before, where it does not now."""
