"""An image that one node published, on another node that reads the store by HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_process import NodeProcess

from dsec.testing.http_store import http_store
from dsec.testing.wire_client import wire_client
from libdsec.protocol.errors import ImageNotFoundError, UnavailableError, UnsupportedOperationError

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether")
BURST = 30


class StoreNode(NodeProcess):
    def __init__(self, directory: Path, store: str, id_base: int) -> None:
        directory.mkdir()
        super().__init__(directory)
        self.store, self.id_base = store, id_base
        if store.startswith("/"):
            Path(store).mkdir(exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **super().environment,
            "DSEC_STORE": self.store,
            "DSEC_ID_BASE": str(self.id_base),
            "DSEC_ID_RANGES": "100",
        }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, tiny_root: str) -> Path:
    """A store with tiny:1 and tiny:2, whose publisher is gone."""
    base = tmp_path_factory.mktemp("s")
    node = StoreNode(base / "maker", str(base / "shared"), 0x5A00_0000)
    node.start()
    try:
        asyncio.run(_publish(node, tiny_root))
        node.end()
        assert node.left_behind() == []
    finally:
        node.kill()
    return base / "shared"


async def _publish(node: NodeProcess, tiny_root: str) -> None:
    async with wire_client(node.socket) as client:
        for ref in ("tiny:1", "tiny:2"):
            await client.call("image.build", ref=ref, source=f"dir:{tiny_root}")
            first = await client.call("image.publish", ref=ref)
            again = await client.call("image.publish", ref=ref)
            assert (again["bytes_sent"], again["chunks_new"]) == (0, 0)
            assert bool(first["chunks_new"]) == (ref == "tiny:1")
        with pytest.raises(ImageNotFoundError):
            await client.call("image.publish", ref="none:1")


@pytest.fixture
def reader(tmp_path: Path, shared: Path) -> Iterator[tuple[NodeProcess, str]]:
    """A node, and the URL of its store."""
    with http_store(str(shared), latency_ms=5) as url:
        node = StoreNode(tmp_path / "r", url, 0x5B00_0000)
        node.start()
        try:
            yield node, url
            node.end()
            assert node.left_behind() == []
        finally:
            node.kill()


def counts(url: str) -> dict[str, int]:
    with urllib.request.urlopen(url + "/-/counts", timeout=10) as answer:
        found: dict[str, int] = json.loads(answer.read())
    return found


def bytes_of(directory: Path) -> int:
    return sum(os.path.getsize(os.path.join(top, name)) for top, _, names in os.walk(directory) for name in names)


async def test_a_burst_over_an_image_that_is_nowhere_here(shared: Path, reader: tuple[NodeProcess, str]) -> None:
    node, url = reader
    async with wire_client(node.socket) as client:
        spec = {"image": "tiny:1"}
        made = await asyncio.gather(*(client.call("sandbox.create", spec=spec) for _ in range(BURST)))
        ids = [str(info["id"]) for info in made]
        answers = await asyncio.gather(*(client.run(i, "/bin/sh", "-c", "cat /etc/passwd | wc -l") for i in ids))
        assert {output for _, output in answers} == {b"2\n"}
        # everything was asked for once at most, however many wanted it
        assert await asyncio.to_thread(lambda: counts(url)["bytes"]) <= bytes_of(shared)
        with pytest.raises(UnsupportedOperationError, match="HTTP"):
            await client.call("image.publish", ref="tiny:1")
        with pytest.raises(ImageNotFoundError):
            await client.call("sandbox.create", spec={"image": "none:1"})
        pinned = await client.call("image.pin", ref="tiny:2")
        assert pinned["ref"] == "tiny:2"
        kept = await client.call("image.gc", dry_run=True)
        assert kept["collected"] == []
        await asyncio.gather(*(client.call("sandbox.stop", sandbox=i) for i in ids))


async def test_a_node_whose_store_cannot_be_reached(tmp_path: Path) -> None:
    node = StoreNode(tmp_path / "r", "http://127.0.0.1:1", 0x5B00_0000)
    node.start()
    try:
        async with wire_client(node.socket) as client:
            with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
                await client.call("sandbox.create", spec={"image": "tiny:1"})
        node.end()
    finally:
        node.kill()
