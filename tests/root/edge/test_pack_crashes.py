"""Packing on a machine that fails: a server that dies, a disk that is full, a file system with snapshots. Afterwards
there is the whole image or none, nothing stands still, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from node_process import WAIT_S, NodeProcess

from dsec.linux import mounts
from dsec.linux.sized import make_sized
from libdsec import DSecClient, DSecContainerRunArgs
from libdsec.errors import CapacityError
from libdsec.sandbox import Sandbox
from remains import DISK_PREFIX

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether")

MIB = 1 << 20
ARGS = DSecContainerRunArgs(container_image="tiny:1")


@contextlib.asynccontextmanager
async def client_of(node: NodeProcess) -> AsyncIterator[DSecClient]:
    async with DSecClient(f"unix://{node.socket}") as client:
        yield client


async def build(client: DSecClient, tiny_root: str) -> None:
    await client.build_image("tiny:1", f"dir:{tiny_root}")


def left(node: NodeProcess) -> list[str]:
    """Of builds and snapshots."""
    return [
        *map(str, (node.state_dir / "building").iterdir()),
        *map(str, (node.state_dir / "uppers").glob("*/*/snapshot")),
    ]


def dies(node: NodeProcess) -> None:
    """The server, of itself; another one can take its place."""
    assert node.process is not None
    assert node.process.wait(WAIT_S) == -signal.SIGKILL, node.log()
    os.unlink(node.socket)


async def check_goes_on(sandbox: Sandbox) -> None:
    assert (await sandbox.run_shell("cat /srv", timeout=10)).stdout == "here\n"
    assert (await sandbox.info()).state == "running"
    assert (await sandbox.run_shell("sleep 5", timeout=0.05)).timed_out, "its timers run"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, tiny_root: str) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("p"))
    node.start()
    try:

        async def prepare() -> None:
            async with client_of(node) as client:
                await build(client, tiny_root)

        asyncio.run(prepare())
        yield node
        node.end()
        assert node.left_behind() == []
    finally:
        node.kill()


@pytest.mark.parametrize("point", ["driver.still.frozen", "pack.built", "pack.published"])
async def test_a_server_that_dies_in_it(own: NodeProcess, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node, ref = own, f"{point}:1"
    node.end()
    monkeypatch.setenv("DSEC_FAULT", f"edge:{point}")
    node.start()
    monkeypatch.delenv("DSEC_FAULT")
    async with client_of(node) as client:
        sandbox = await client.run_container(ARGS)
        await sandbox.run_shell("echo here >/srv; dd if=/dev/zero of=/root/x bs=1M count=3")
        packing = asyncio.ensure_future(sandbox.pack_diff(ref))
        await asyncio.to_thread(dies, node)
        await asyncio.to_thread(node.start)
        # it says its step again, and finds what was published, or has it done
        packed = await packing
        assert [info.ref for info in await client.images()].count(ref) == 1
        assert packed.layer.files == 2
        assert left(node) == []
        await check_goes_on(sandbox)
        again = await client.run_container(DSecContainerRunArgs(container_image="tiny:1", workspace=ref))
        assert (await again.run_shell("cat /srv")).stdout == "here\n"
        for one in (again, sandbox):
            await one.stop()
        await client.remove_image(ref)


async def test_a_paused_sandbox_is_paused_after_such_a_death(own: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    node = own
    node.end()
    monkeypatch.setenv("DSEC_FAULT", "edge:pack.built")
    node.start()
    monkeypatch.delenv("DSEC_FAULT")
    async with client_of(node) as client:
        sandbox = await client.run_container(ARGS)
        await sandbox.run_shell("echo here >/srv")
        await sandbox.pause()
        packing = asyncio.ensure_future(sandbox.pack_diff("paused:1"))
        await asyncio.to_thread(dies, node)
        await asyncio.to_thread(node.start)
        await packing
        assert (await sandbox.info()).state == "paused"
        await check_goes_on(sandbox)
        await sandbox.stop()
        await client.remove_image("paused:1")


@contextlib.contextmanager
def node_on(directory: Path) -> Iterator[NodeProcess]:
    """A node whose state lies there; its sockets do not, since their paths must be short."""
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as run:
        node = NodeProcess(Path(run))
        node.state_dir = directory / "state"
        node.start()
        try:
            yield node
            node.end()
            assert node.left_behind() == []
        finally:
            node.kill()


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=DISK_PREFIX, dir="/var/tmp") as directory:
        yield Path(directory)


@pytest.mark.needs("loop", "mkfs.ext4")
def test_a_full_disk_is_told_and_nothing_else_suffers(tiny_root: str) -> None:
    async def use(node: NodeProcess) -> None:
        async with client_of(node) as client:
            await build(client, tiny_root)
            sandbox = await client.run_container(ARGS)
            await sandbox.run_shell("echo here >/srv; dd if=/dev/urandom of=/root/x bs=1M count=45")
            with pytest.raises(CapacityError):
                await sandbox.pack_diff("full:1")
            assert left(node) == []
            assert "full:1" not in [info.ref for info in await client.images()]
            await check_goes_on(sandbox)
            await sandbox.run_shell("rm /root/x")
            assert (await sandbox.pack_diff("full:1")).layer.files == 1

    with scratch() as directory:
        place = directory / "fs"
        make_sized(str(directory / "image"), str(place), 100 * MIB, None)
        try:
            with node_on(place) as node:
                asyncio.run(use(node))
        finally:
            mounts.umount(str(place))


async def check_of_one_moment(client: DSecClient, sandbox: Sandbox) -> None:
    """Files are made one after the other, each whole before the next: only the last may be there without its
    contents."""
    writing = "i=0; while :; do i=$((i+1)); echo $i >/var/$i; test $i -gt 40 && rm /var/$((i-40)); done"
    process = await sandbox.track("writer").exec_stream(["/bin/sh", "-c", writing])
    async with process:
        for number in range(3):
            await asyncio.sleep(0.3)
            await sandbox.pack_diff(f"moment:{number}")
            args = DSecContainerRunArgs(container_image="tiny:1", workspace=f"moment:{number}")
            view = await client.run_container(args)
            shown = await view.run_shell('cd /var; for f in [0-9]*; do read x <$f; test "$x" = "$f" || echo $f; done')
            assert len(shown.stdout.split()) <= 1, shown.stdout
            await view.stop()
        process.kill()
        await process.wait()


@pytest.mark.needs("btrfs", "loop")
def test_an_upper_with_snapshots_is_packed_while_it_goes_on(tiny_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(node: NodeProcess) -> None:
        async with client_of(node) as client:
            await build(client, tiny_root)
            limited = DSecContainerRunArgs(container_image="tiny:1", disk_limit_mb=64)
            sandbox = await client.run_container(limited)
            await sandbox.run_shell("echo here >/srv; rm /bin/yes; mkdir /var/new; touch /var/new/x")
            packed = await sandbox.pack_diff("snapped:1")
            assert packed.frozen_ms > 0  # for the snapshot alone
            assert packed.layer.files == 2
            assert left(node) == []
            await check_of_one_moment(client, sandbox)
            await sandbox.pause()
            await sandbox.pack_diff("snapped:2")
            assert (await sandbox.info()).state == "paused"
            view = await client.run_container(DSecContainerRunArgs(container_image="tiny:1", workspace="snapped:1"))
            assert (await view.run_shell("cat /srv; ls /bin/yes /var/new")).stdout == "here\n/var/new:\nx\n"
            await sandbox.stop()
            await view.stop()

    async def crash(node: NodeProcess) -> None:
        async with client_of(node) as client:
            sandbox = await client.run_container(DSecContainerRunArgs(container_image="tiny:1", disk_limit_mb=64))
            await sandbox.run_shell("echo here >/srv")
            packing = asyncio.ensure_future(sandbox.pack_diff("snapped:3"))
            await asyncio.to_thread(dies, node)
            assert len(left(node)) == 1
            await asyncio.to_thread(node.start)
            await packing
            assert left(node) == []
            await check_goes_on(sandbox)
            await sandbox.stop()

    with scratch() as directory:
        image, place = directory / "image", directory / "fs"
        with image.open("wb") as file:
            file.truncate(512 * MIB)
        place.mkdir()
        subprocess.run(["mkfs.btrfs", "-q", image], check=True, timeout=60)
        subprocess.run(["mount", "-o", "loop", image, place], check=True, timeout=60)
        try:
            subprocess.run(["btrfs", "quota", "enable", place], check=True, timeout=60)
            with node_on(place) as node:
                asyncio.run(use(node))
                node.end()
                monkeypatch.setenv("DSEC_FAULT", "edge:driver.snapshot.made")
                node.start()
                monkeypatch.delenv("DSEC_FAULT")
                asyncio.run(crash(node))
        finally:
            os.sync()
            mounts.umount(str(place))
