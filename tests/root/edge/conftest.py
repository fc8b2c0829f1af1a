"""A real server of these tests' own: `dsec serve` in its own process, directories and control groups."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest
import uvloop
from node_process import NodeProcess

from dsec.testing.tiny_root import make_tiny_root
from dsec.testing.wire_client import wire_client


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    uvloop.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


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
