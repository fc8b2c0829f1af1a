"""A real server of these tests' own: `dsec serve` in its own process, directories and control groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from node_process import NodeProcess

from dsec.testing.tiny_root import make_tiny_root
from dsec.testing.wire_client import wire_client


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_tiny_root(str(tmp_path_factory.mktemp("t") / "root"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, tiny_root: str) -> Iterator[NodeProcess]:
    """Running, with the image `tiny:1`. Nothing of it is left afterwards, or the module fails."""
    node = NodeProcess(tmp_path_factory.mktemp("n"))
    node.start()
    try:
        asyncio.run(_build(node, tiny_root))
        yield node
        node.end()
        assert node.left_behind() == []
    finally:
        node.kill()


async def _build(node: NodeProcess, tiny_root: str) -> None:
    async with wire_client(node.socket) as client:
        await client.call("image.build", ref="tiny:1", source=f"dir:{tiny_root}")
