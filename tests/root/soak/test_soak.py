"""Many sandboxes through the SDK, many at once: nothing of them stays anywhere, and memory does not creep.

`DSEC_TEST_CYCLES` says how many; 300 show a leak of something a sandbox, 3000 also one of some bytes a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_process import NodeProcess, dying_cgroups

from dsec.commandlog.log import MAX_RESTING
from dsec.testing.tiny_root import make_tiny_root
from libdsec import DSecClient, DSecContainerRunArgs

CYCLES = int(os.environ.get("DSEC_TEST_CYCLES", "300"))
IN_FLIGHT = 16
KEPT_FINAL = 100
"""Sandboxes that the node remembers after their end: few, so that this memory has its size before we look."""

WARM_UP = 2 * MAX_RESTING
"""The command log keeps as many ended scopes as it ever does; arenas, pools and caches have their size."""

SLOPE_LIMIT = 512 * 1024
"""Bytes that a process may grow by in 1,000 cycles."""

NOISE = 1024 * 1024
"""What one look at resident memory may be off by."""

pytestmark = [
    pytest.mark.needs("root", "linux", "erofs", "overlay", "aether"),
    pytest.mark.timeout(120 + CYCLES),
]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeProcess]:
    monkeypatch.setenv("DSEC_KEPT_FINAL", str(KEPT_FINAL))
    node = NodeProcess(tmp_path)
    node.start()
    try:
        yield node
        node.end()
        assert node.left_behind() == []
    finally:
        node.kill()


async def cycles(client: DSecClient, count: int) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            async with await client.run_container(DSecContainerRunArgs(container_image="tiny:1")) as sandbox:
                result = await sandbox.run_shell(f"mkdir -p /a/b; echo {number} > /a/b/c; cat /a/b/c")
                assert result.stdout == f"{number}\n"

    async with asyncio.TaskGroup() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.create_task(work())


def resident(node: NodeProcess) -> dict[str, int]:
    assert node.process is not None
    (fork_server,) = node.fork_servers()
    return {name: _resident(pid) for name, pid in (("server", node.process.pid), ("fork server", fork_server))}


def _resident(pid: int) -> int:
    line = next(n for n in Path(f"/proc/{pid}/status").read_text().splitlines() if n.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


async def soak(node: NodeProcess, root: str) -> None:
    async with DSecClient(f"unix://{node.socket}") as client:
        await client.build_image("tiny:1", f"dir:{root}")
        await cycles(client, WARM_UP)
        node.wait(lambda: node.trash() == [])
        before, groups, memory = node.seen(), dying_cgroups(), resident(node)
        await cycles(client, CYCLES)
        # what goes in the background gets its time; what does not is shown by the comparison
        with contextlib.suppress(AssertionError):
            node.wait(lambda: node.seen() == before)
        after, grown = node.seen(), {name: size - memory[name] for name, size in resident(node).items()}
        lingering = {name: count - groups.get(name, 0) for name, count in dying_cgroups().items()}
        report = f"{CYCLES} cycles: grown {grown}, lingering groups {lingering}, {after}"
        print(report)
        assert after == before
        assert await client.list() == ()
        # other users of the machine may leave some meanwhile; ours would be one a cycle or more
        assert all(count < CYCLES for count in lingering.values()), report
        assert all(size < NOISE + SLOPE_LIMIT * CYCLES / 1000 for size in grown.values()), report


def test_many_cycles_leave_no_trace(node: NodeProcess, tmp_path: Path) -> None:
    asyncio.run(soak(node, make_tiny_root(str(tmp_path / "root"))))
