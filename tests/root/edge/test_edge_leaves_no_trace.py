"""What create took, stop gives back: counted over many cycles, in every place where something could stay."""

from __future__ import annotations

import pytest
from node_process import NodeProcess, cgroup_counts, loop_devices, mount_count

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


def seen(node: NodeProcess) -> dict[str, object]:
    assert node.process is not None
    mounts = mount_count()
    return {
        "descriptors": node.descriptors(),
        "processes": len(node.processes()),
        "mount namespaces": len(mounts),
        "mounts": sum(mounts.values()),
        "own cgroups": node.cgroups(),
        "loop devices": loop_devices(),
        "uppers": node.uppers(),
    }


async def test_cycles_leave_no_trace(node: NodeProcess) -> None:
    await cycle(node, WARM_UP)
    node.wait(lambda: node.trash() == [])
    before, groups = seen(node), cgroup_counts()
    await cycle(node, CYCLES)
    node.wait(lambda: node.trash() == [])
    node.wait(lambda: seen(node) == before)
    grown = {name: count - groups[name] for name, count in cgroup_counts().items() if count > groups[name]}
    # other users of the machine may make a group or two meanwhile; a leak would be one a cycle
    assert all(count < CYCLES // 10 for count in grown.values()), grown
