"""Sandboxes whose image lies in a shared store, on a node that had nothing of it, with processes killed around them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_process import NodeProcess

from dsec.testing.http_store import HttpStore
from dsec.testing.tiny_root import make_tiny_root
from dsec.testing.wire_client import WireClient, wire_client

pytestmark = pytest.mark.needs("root", "linux", "erofs-from-files", "pre-content", "overlay", "aether")

HASH_ALL = ["/bin/sh", "-c", "sha256sum /data/*"]


class StoreNode(NodeProcess):
    store = ""
    way = "pre-content"

    @property
    def environment(self) -> dict[str, str]:
        asked = {"DSEC_STORE": self.store, "DSEC_DATA_SOURCE": self.way, "DSEC_STORE_RAW": "1"}
        return {**super().environment, **asked}


def write_data(root: Path, seed: int, files: int) -> bytes:
    """What `sha256sum /data/*` will say."""
    (root / "data").mkdir(parents=True)
    source = random.Random(seed)
    lines = []
    for number in range(files):
        content = source.randbytes(source.choice((3000, 200_000, 900_000)))
        (root / "data" / f"{seed}-{number:03}").write_bytes(content)
        lines.append(f"{hashlib.sha256(content).hexdigest()}  /data/{seed}-{number:03}\n")
    return "".join(lines).encode()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, bytes]]:
    """A store with cold:1 (a base), more:1 (a workspace) and tool:1 (a toolkit), and what the base's files hash to."""
    directory = tmp_path_factory.mktemp("p")
    root = Path(make_tiny_root(str(directory / "root")))
    program = shutil.which("sha256sum")
    assert program is not None
    shutil.copy2(program, root / "bin" / "sha256sum")
    for line in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split():
        if line.startswith("/"):
            (root / line[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(os.path.realpath(line), root / line[1:])
    said = write_data(root, 1, 50)
    for seed in (2, 3):
        write_data(directory / f"more{seed}", seed, 10)
    node = StoreNode(directory)
    node.store = str(directory / "store")
    (directory / "store").mkdir()
    node.start()
    try:
        asyncio.run(_publish(node, root, directory))
        node.end()
        yield node.store, said
    finally:
        node.kill()


async def _publish(node: NodeProcess, root: Path, directory: Path) -> None:
    async with wire_client(node.socket) as client:
        await client.call("image.build", ref="cold:1", source=f"dir:{root}")
        await client.call("image.build", ref="more:1", source=f"dir:{directory}/more2", kind="workspace")
        await client.call("image.build", ref="tool:1", source=f"dir:{directory}/more3", kind="toolkit")
        for ref in ("cold:1", "more:1", "tool:1"):
            await client.call("image.publish", ref=ref)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, published: tuple[str, bytes]) -> Iterator[StoreNode]:
    node = StoreNode(tmp_path_factory.mktemp("c"))
    node.store = published[0]
    node.start()
    try:
        yield node
        node.end()
        assert node.left_behind() == []
    finally:
        node.kill()


@pytest.fixture
def cold(running: StoreNode) -> Iterator[StoreNode]:
    """A node that has nothing of what is published."""
    yield running
    asyncio.run(_empty(running))
    assert os.listdir(running.state_dir / "layers") == []


async def _empty(node: NodeProcess) -> None:
    async with wire_client(node.socket) as client:
        for image in (await client.call("image.list"))["images"]:
            await client.call("image.remove", ref=image["ref"])


async def _run(client: WireClient, sandbox: str) -> tuple[int, bytes]:
    call = client.start("exec", sandbox=sandbox, argv=HASH_ALL)
    answer = await call.answer()
    return answer["exit_code"], call.stdout


async def test_an_edge_that_is_killed_delays_a_cold_read(cold: StoreNode, published: tuple[str, bytes]) -> None:
    said = published[1]
    slowly = ["/bin/sh", "-c", "for f in /data/*; do sha256sum $f; sleep 0.02; done"]
    async with wire_client(cold.socket) as client:
        sandbox = (await client.call("sandbox.create", spec={"image": "cold:1"}))["id"]
        client.step("main", 1, "exec", sandbox=sandbox, argv=slowly)
        await asyncio.sleep(0.2)
        cold.crash()
    await asyncio.sleep(0.2)
    cold.start()
    async with wire_client(cold.socket) as client:
        await client.call("server.info")
        cold.crash()
    cold.start()
    async with wire_client(cold.socket) as client:
        call = client.step("main", 1, "exec", sandbox=sandbox, argv=slowly)
        assert (await call.answer())["exit_code"] == 0
        assert call.stdout == said
        assert await _run(client, sandbox) == (0, said)
        stats = await client.call("image.stats", ref="cold:1")
        assert [layer["errors"] for layer in stats["layers"]] == [0]
        await client.call("sandbox.stop", sandbox=sandbox)


async def test_a_fork_server_that_is_killed_is_followed_by_one_that_has_the_group(
    cold: StoreNode, published: tuple[str, bytes]
) -> None:
    async with wire_client(cold.socket) as client:
        sandbox = (await client.call("sandbox.create", spec={"image": "cold:1"}))["id"]
        (fork_server,) = cold.fork_servers()
        os.kill(fork_server, signal.SIGKILL)
        cold.wait(lambda: cold.fork_servers() not in ([], [fork_server]))
        # mounted anew from the same file, while the first mount lives on in the first sandbox
        other = (await client.call("sandbox.create", spec={"image": "cold:1"}))["id"]
        cold.crash()
    cold.start()
    async with wire_client(cold.socket) as client:
        for each in (sandbox, other):
            assert await _run(client, each) == (0, published[1])
            await client.call("sandbox.stop", sandbox=each)


async def test_a_hundred_creates_at_once_from_layers_never_used(cold: StoreNode, published: tuple[str, bytes]) -> None:
    spec = {"image": "cold:1", "workspace": "more:1", "toolkits": ["tool:1"]}
    async with wire_client(cold.socket) as client:
        creates = [client.start("sandbox.create", spec=spec) for _ in range(100)]
        made = [(await create.answer())["id"] for create in creates]
        argv = ["/bin/sh", "-c", "cat /data/*1 | wc -c"]
        reads = [client.start("exec", sandbox=sandbox, argv=argv) for sandbox in made]
        outcomes = {((await read.answer())["exit_code"], read.stdout) for read in reads}
        assert len(outcomes) == 1
        stats = (await client.call("image.stats"))["layers"]
        assert len(stats) == 3
        for layer in stats:
            assert (layer["source"], layer["errors"], layer["in_use"]) == ("pre-content", 0, 100)
            # compressed, and random bytes hardly are: were chunks fetched twice, it would be more
            assert layer["fetched_bytes"] <= layer["present_bytes"] * 1.01
        await asyncio.gather(*(client.call("sandbox.stop", sandbox=sandbox) for sandbox in made))


async def test_nothing_is_left_of_a_layer_that_nobody_uses(cold: StoreNode, published: tuple[str, bytes]) -> None:
    async with wire_client(cold.socket) as client:
        counts = []
        for _ in range(6):
            sandbox = (await client.call("sandbox.create", spec={"image": "cold:1"}))["id"]
            assert (await client.run(sandbox, "true"))[0]["exit_code"] == 0
            await client.call("sandbox.stop", sandbox=sandbox)
            await client.call("image.remove", ref="cold:1")
            cold.wait(lambda: _open_layers(cold) == [])
            counts.append(cold.descriptors()["server"])
        # a database of the node may be opened once more at any time, but not each time
        assert counts[-1] <= counts[0] + 2


async def test_a_whole_layer_is_read_without_the_store(cold: StoreNode, published: tuple[str, bytes]) -> None:
    async with wire_client(cold.socket) as client:
        sandbox = (await client.call("sandbox.create", spec={"image": "cold:1"}))["id"]
        await client.call("image.fetch", ref="cold:1")
        await client.call("image.verify", ref="cold:1")
        (layer,) = (await client.call("image.stats", ref="cold:1"))["layers"]
        assert layer["present_bytes"] == layer["data_bytes"]
        requests = layer["requests"]
        assert await _run(client, sandbox) == (0, published[1])
        (layer,) = (await client.call("image.stats", ref="cold:1"))["layers"]
        assert layer["requests"] == requests
        await client.call("sandbox.stop", sandbox=sandbox)


@pytest.mark.parametrize("way", ["auto", "prefetch"])
async def test_the_other_ways(tmp_path: Path, published: tuple[str, bytes], way: str) -> None:
    node = StoreNode(tmp_path)
    node.store, node.way = published[0], way
    node.start()
    try:
        async with wire_client(node.socket) as client:
            sandbox = (await client.call("sandbox.create", spec={"image": "cold:1"}))["id"]
            assert await _run(client, sandbox) == (0, published[1])
            (layer,) = (await client.call("image.stats", ref="cold:1"))["layers"]
            assert layer["source"] == {"auto": "direct"}.get(way, way)
            assert layer["reads_waited"] == 0
            await client.call("sandbox.stop", sandbox=sandbox)
        node.end()
        assert node.left_behind() == []
    finally:
        node.kill()


def _open_layers(node: NodeProcess) -> list[str]:
    assert node.process is not None
    found = []
    for number in os.listdir(f"/proc/{node.process.pid}/fd"):
        try:
            target = os.readlink(f"/proc/{node.process.pid}/fd/{number}")
        except OSError:
            continue
        if "/layers/" in target:
            found.append(target)
    return found


@pytest.mark.needs("cgroup-v1")
async def test_a_sandbox_that_is_paused_in_a_cold_read_keeps_nothing_from_another(
    tmp_path: Path, published: tuple[str, bytes]
) -> None:
    """It reads to the end and stands then: frozen before, it would keep the pages locked that both want."""
    distant = HttpStore(published[0])
    node = StoreNode(tmp_path)
    wanted = published[1].splitlines(keepends=True)[-1]
    read_last = ["/bin/sh", "-c", "sha256sum /data/1-049"]
    async with distant.serving() as port:
        node.store = f"http://127.0.0.1:{port}"
        await asyncio.to_thread(node.start)
        try:
            async with wire_client(node.socket) as client:
                one, other = [(await client.call("sandbox.create", spec={"image": "cold:1"}))["id"] for _ in range(2)]
                for sandbox in (one, other):
                    await client.run(sandbox, "/bin/sh", "-c", "sha256sum /bin/sh")
                distant.latency_s = 3.0
                first = client.start("exec", sandbox=one, argv=read_last)
                await asyncio.sleep(0.5)
                pause = client.start("sandbox.pause", sandbox=one)
                await asyncio.sleep(0.5)
                second = client.start("exec", sandbox=other, argv=read_last)
                await asyncio.sleep(0.5)
                distant.latency_s = 0.0
                assert (await second.answer())["exit_code"] == 0
                assert second.stdout == wanted
                await pause.answer()
                await client.call("sandbox.resume", sandbox=one)
                assert (await first.answer())["exit_code"] == 0
                assert first.stdout == wanted
                for sandbox in (one, other):
                    await client.call("sandbox.stop", sandbox=sandbox)
            await asyncio.to_thread(node.end)
        finally:
            await asyncio.to_thread(node.kill)
