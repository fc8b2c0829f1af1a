"""What create took, stop gives back: counted over many cycles, in every place where something could stay."""

from __future__ import annotations

import contextlib

import pytest
from node_process import NodeProcess, dying_cgroups

from dsec.testing.wire_client import wire_client

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether")
WARM_UP = 30
CYCLES = 300


async def cycle(node: NodeProcess, count: int) -> None:
    async with wire_client(node.socket) as client:
        for number in range(count):
            sandbox = (await client.call("sandbox.create", spec={"image": "tiny:1"}))["id"]
            answer, _ = await client.run(sandbox, "/bin/sh", "-c", "mkdir -p /a/b; echo x > /a/b/c; cat /a/b/c")
            assert answer["exit_code"] == 0, number
            await client.call("sandbox.stop", sandbox=sandbox)


def settle(node: NodeProcess, before: dict[str, object]) -> None:
    """What goes in the background gets its time; what does not come to rest is shown by the assertion that follows."""
    with contextlib.suppress(AssertionError):
        node.wait(lambda: node.seen() == before)


async def test_cycles_leave_no_trace(node: NodeProcess) -> None:
    await cycle(node, WARM_UP)
    node.wait(lambda: node.trash() == [])
    before, groups = node.seen(), dying_cgroups()
    await cycle(node, CYCLES)
    node.wait(lambda: node.trash() == [])
    settle(node, before)
    assert node.seen() == before
    grown = {name: count - groups[name] for name, count in dying_cgroups().items() if count > groups[name]}
    # other users of the machine may leave some meanwhile; ours would be one a cycle
    assert all(count < CYCLES // 3 for count in grown.values()), grown
