"""Processes killed at every point there is: nothing acknowledged is lost, nothing runs twice, nothing is left.

A seed is a program, a victim and a moment. `make faults` runs a thousand; one that fails says how to run it alone.
"""

from __future__ import annotations

import pytest
from fault_node import FaultNode
from fault_points import points, victims
from fault_seed import Seed

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether")


async def test_seed(node: FaultNode, seed: int) -> None:
    try:
        await Seed(node, seed).run()
    except BaseException as error:
        error.add_note(f"again, alone: pytest tests/faults/test_faults.py --fault-seed={seed}")
        raise


def test_every_point_has_a_seed() -> None:
    aimed = [victim.point for victim in victims() if victim.point]
    assert sorted(aimed) == sorted(points())
    assert len(aimed) == len(set(aimed))
