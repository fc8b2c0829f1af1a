"""The quota hook: asked before a sandbox is made."""

from __future__ import annotations

from collections.abc import Callable

from libdsec.protocol.spec import SandboxSpec

QuotaHook = Callable[[str, SandboxSpec], None]
"""(principal, spec) → nothing, or raises QuotaExceededError. Called after the request was found valid and before
anything is taken for it; what it counts it must count again when the sandbox ends, so a hook that counts looks at the
edge's list."""


def no_quota(principal: str, spec: SandboxSpec) -> None:
    """One node has no quotas: whoever may use it may use all of it."""
