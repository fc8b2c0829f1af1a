"""What came of a replay."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Verdict = Literal["same", "different", "nondeterministic", "skipped"]


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fact of a step: as recorded, and as the first and the second fresh sandbox gave it."""

    fact: str
    recorded: Any
    first: Any
    second: Any = None


class StepReport(msgspec.Struct, frozen=True, omit_defaults=True):
    step: str
    method: str
    verdict: Verdict
    skipped: str = ""
    """Why."""
    gap: str = ""
    """The first skipped step that may have changed its sandbox: what it gave may be that one's doing."""
    differences: tuple[Difference, ...] = ()


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    scope: str
    steps: tuple[StepReport, ...]
    totals: dict[Verdict, int]
    kept: dict[str, tuple[str, ...]] = {}
    """Recorded sandbox → the fresh ones that were kept."""

    @property
    def exit_code(self) -> int:
        """1 when a step was different, 3 when none was but some were nondeterministic."""
        if self.totals["different"]:
            return 1
        return 3 if self.totals["nondeterministic"] else 0
