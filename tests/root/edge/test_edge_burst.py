"""A burst of creates over layers that nobody has used before: all succeed, over one mount a layer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from node_process import NodeProcess

from dsec.testing.wire_client import wire_client

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether")
BURST = 100


async def test_a_hundred_at_once_over_new_layers(node: NodeProcess, tmp_path: Path) -> None:
    layers = {"repo/new:v1": "workspace", "tool/new:v1": "toolkit"}
    async with wire_client(node.socket) as client:
        for ref, kind in layers.items():
            tree = tmp_path / kind
            tree.mkdir()
            (tree / kind).write_text(ref)
            await client.call("image.build", ref=ref, source=f"dir:{tree}", kind=kind)
        before = node.descriptors()["fork server"]
        spec = {"image": "tiny:1", "workspace": "repo/new:v1", "toolkits": ["tool/new:v1"]}
        made = await asyncio.gather(*(client.call("sandbox.create", spec=spec) for _ in range(BURST)))
        ids = [str(info["id"]) for info in made]
        answers = await asyncio.gather(*(client.run(i, "/bin/sh", "-c", "cat /workspace /toolkit") for i in ids))
        assert {output for _, output in answers} == {"".join(layers).encode()}
        await asyncio.gather(*(client.call("sandbox.stop", sandbox=i) for i in ids))
        # the three layers' mounts are all that the fork server holds more than before
        assert node.descriptors()["fork server"] <= before + 3
