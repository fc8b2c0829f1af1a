"""What a node offers, uses, and can and cannot do."""

from __future__ import annotations

from typing import Literal

import msgspec


class NodeStatus(msgspec.Struct, frozen=True):
    """One node as placement sees it. Bytes and counts."""

    name: str
    edge_prefix: str
    backends: tuple[str, ...]
    memory_bytes: int
    memory_requested: int
    pids: int
    pids_requested: int
    sandboxes: int
    healthy: bool
    reason: str | None = None
    """Why it is not healthy."""


Verdict = Literal["ok", "degraded", "missing"]


class Finding(msgspec.Struct, frozen=True):
    """One line of `dsec doctor`: what was tried (not what a version promises), how it went, what to do."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str | None = None


class DoctorReport(msgspec.Struct, frozen=True):
    findings: tuple[Finding, ...]
