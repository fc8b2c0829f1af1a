"""Seeds of the fault harness, and the node that they run on."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "root" / "edge"))

from fault_node import FaultNode

from dsec.testing.tiny_root import make_tiny_root
from dsec.testing.wire_client import wire_client

SEEDS = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-seeds", type=int, help=f"how many seeds ({SEEDS}, or DSEC_FAULT_SEEDS)")
    parser.addoption("--fault-seed", type=int, help="this seed alone")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" not in metafunc.fixturenames:
        return
    one = metafunc.config.getoption("fault_seed", default=None)
    count = metafunc.config.getoption("fault_seeds", default=None)
    seeds = [one] if one is not None else range(count or int(os.environ.get("DSEC_FAULT_SEEDS", SEEDS)))
    metafunc.parametrize("seed", seeds)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultNode]:
    """Running, with the image `tiny:1`. Nothing of it is left afterwards, or the module fails."""
    node = FaultNode(tmp_path_factory.mktemp("f"))
    try:
        node.start()
        asyncio.run(_build(node, make_tiny_root(str(node.directory / "root"))))
        yield node
        node.end()
        assert node.left_behind() == []
    finally:
        node.close()


async def _build(node: FaultNode, root: str) -> None:
    assert await node.serving()
    async with wire_client(node.socket) as client:
        await client.call("image.build", ref="tiny:1", source=f"dir:{root}")
