"""How much is kept, and how long."""

from __future__ import annotations

from dataclasses import dataclass

INLINE_BYTES = 16 * 1024
"""Output of a step, both streams, that lies in its row. More goes to the scope's blob file."""

ROW_BYTES = 256
"""What a step counts for beside its request, answer and output."""


@dataclass(frozen=True, slots=True)
class Bounds:
    steps: int = 1_000_000
    """Of one scope. More are `QuotaExceededError`."""
    bytes: int = 1024**3
    """Of one scope: requests, answers and outputs. More is `QuotaExceededError`."""
    keep_s: float = 7 * 24 * 3600.0
    """A log goes so long after its scope has ended."""
    total_bytes: int = 8 * 1024**3
    """Of all scopes: above it those that have ended go earlier, the oldest first."""
