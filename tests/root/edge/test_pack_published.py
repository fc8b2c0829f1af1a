"""A sandbox packed on one node is a workspace on another node of the same store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_process import NodeProcess

from libdsec import DSecClient, DSecContainerRunArgs
from libdsec.errors import AlreadyExistsError

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether")


class StoreNode(NodeProcess):
    def __init__(self, directory: Path, store: Path, id_base: int) -> None:
        directory.mkdir()
        super().__init__(directory)
        store.mkdir(exist_ok=True)
        self._settings = {"DSEC_STORE": str(store), "DSEC_ID_BASE": str(id_base), "DSEC_ID_RANGES": "100"}

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self._settings}


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    nodes = [
        StoreNode(tmp_path / name, tmp_path / "store", base) for name, base in (("a", 0x5C00_0000), ("b", 0x5D00_0000))
    ]
    try:
        for node in nodes:
            node.start()
        yield nodes[0], nodes[1]
        for node in nodes:
            node.end()
            assert node.left_behind() == []
    finally:
        for node in nodes:
            node.kill()


def test_what_one_node_packs_another_runs(two_nodes: tuple[NodeProcess, NodeProcess], tiny_root: str) -> None:
    async def use() -> None:
        urls = [f"unix://{node.socket}" for node in two_nodes]
        async with DSecClient(urls[0]) as first, DSecClient(urls[1]) as second:
            await first.build_image("tiny:1", f"dir:{tiny_root}")
            await first.publish_image("tiny:1")
            sandbox = await first.run_container(DSecContainerRunArgs(container_image="tiny:1"))
            await sandbox.run_shell("echo first >/srv; rm /bin/yes")
            packed = await sandbox.pack_diff("app:1", publish=True)
            await sandbox.stop()

            args = DSecContainerRunArgs(container_image="tiny:1", workspace="app:1")
            there = await second.run_container(args)
            assert (await there.run_shell("cat /srv; ls /bin/yes")).stdout == "first\n"
            assert [change async for change in there.diff()] == []
            await there.run_shell("echo second >/srv")
            with pytest.raises(AlreadyExistsError):
                await there.pack_diff("app:1")
            # what it lies on came from the store, and goes back as it is
            whole = await there.pack_diff("app:2", "base", publish=True)
            assert whole.image.layers[1] == packed.layer
            await there.stop()

            back = await first.run_container(DSecContainerRunArgs(container_image="app:2"))
            assert (await back.run_shell("cat /srv; ls /bin/yes")).stdout == "second\n"
            await back.stop()

    asyncio.run(use())
