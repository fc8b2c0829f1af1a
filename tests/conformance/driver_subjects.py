"""The drivers under test, each with a way to order a sandbox from it and to count what it has taken."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsec.config import find_aether, load
from dsec.drivers.base import Driver, Order
from dsec.drivers.container.driver import ContainerConfig, ContainerDriver
from dsec.edge.slots import Slots
from dsec.linux.cgroups import CgroupPool, Hierarchies
from dsec.store.images import build_image
from dsec.store.local import LocalStore
from dsec.store.mounts import LayerMounts
from dsec.testing.fake_driver import FakeDriver
from dsec.testing.tiny_root import make_tiny_root
from libdsec.protocol.environment import ImageBuildRequest
from libdsec.protocol.ids import new_edge_prefix, new_sandbox_id, new_token
from libdsec.protocol.spec import MIB, Limits, SandboxSpec


@dataclass
class Subject:
    driver: Driver
    layers: tuple[str, ...]
    slots: Slots
    taken: Callable[[], dict[str, int]]
    """What it has of the machine for sandboxes now; all zeros when there are none."""
    kill: Callable[[str], None]
    """End a sandbox as a crash would."""
    prefix: str
    succeed: Callable[[bool], Awaitable[None]]
    """Put another driver, started, in the place of `driver`, which is closed so that all goes on (True), or forgotten
    as if its process had been killed (False)."""

    def order(self, *, timeout_s: float = 20.0, limits: Limits | None = None, **spec: Any) -> Order:
        sandbox = new_sandbox_id(self.prefix)
        return Order(
            id=sandbox,
            spec=SandboxSpec("tiny:1", **spec),
            layers=self.layers,
            slot=self.slots.take(),
            limits=limits or Limits(memory_bytes=256 * MIB, pids=64),
            hostname=sandbox,
            timeout_s=timeout_s,
        )


@dataclass
class ContainerSubject(Subject):
    node: Node


Make = Callable[[], AbstractAsyncContextManager[Subject]]


@asynccontextmanager
async def fake_subject() -> AsyncIterator[Subject]:
    from dsec.drivers.base import End

    driver = FakeDriver()
    await driver.start()

    def kill(sandbox: str) -> None:
        driver.instances[sandbox].die(End("init_killed", "PID 1 was killed by signal 9", {}))

    async def succeed(leave: bool) -> None:
        nonlocal driver
        if leave:
            await driver.close(leave=True)
        else:
            driver.crash()
        subject.driver = driver = FakeDriver(machine=driver.machine)
        await driver.start()

    subject = Subject(
        driver,
        ("sha256:0",),
        Slots(0x7000_0000, 64),
        lambda: {"instances": len(driver.instances), "sandboxes": len(driver.machine)},
        kill,
        new_edge_prefix(),
        succeed,
    )
    yield subject
    await driver.close()


@asynccontextmanager
async def container_subject(directory: Path) -> AsyncIterator[ContainerSubject]:
    """A real one, in directories and control groups of its own, with ids beyond those of an ordinary node."""
    store = LocalStore(str(directory / "state"))
    request = ImageBuildRequest("tiny:1", f"dir:{make_tiny_root(str(directory / 'root-files'))}")
    image = await asyncio.to_thread(build_image, store, request, lambda step: None)
    prefix = new_edge_prefix()
    run_dir = directory / "run"
    run_dir.mkdir()
    async with asyncio.TaskGroup() as tasks:

        def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            return tasks.create_task(work)

        node = Node(directory, store, f"dsec-{prefix}", spawn)

        def taken() -> dict[str, int]:
            uppers = list((directory / "uppers").glob("[0-9a-f]*/*"))
            used = sum(node.mounts.in_use(layer.digest) for layer in image.layers)
            return {"instances": len(node.driver._instances), "uppers": len(uppers), "layers": used}

        def kill(sandbox: str) -> None:
            os.kill(node.driver._instances[sandbox].pid, 9)

        async def succeed(leave: bool) -> None:
            await node.succeed(leave)
            subject.driver = node.driver

        await node.driver.start()
        subject = ContainerSubject(
            node.driver,
            tuple(layer.digest for layer in image.layers),
            Slots(0x7000_0000, 64),
            taken,
            kill,
            prefix,
            succeed,
            node,
        )
        try:
            yield subject
        finally:
            await node.close()
            store.close()


class Node:
    """One driver after the other on the same directories and control groups."""

    def __init__(self, directory: Path, store: LocalStore, cgroups: str, spawn: Callable[..., Any]) -> None:
        self.aether = find_aether(load())
        self._directory, self._store, self._cgroups, self._spawn = directory, store, cgroups, spawn
        self._processes: list[int] = []
        self._started = 0
        self.timeout_s = 10.0
        """Of the fork server, for drivers made from now on."""
        self._make()

    def _make(self) -> None:
        run_dir = self._directory / "run"
        self._started += 1
        config = ContainerConfig(
            aether=self.aether,
            socket_path=str(run_dir / "fork-server.sock"),
            log_path=str(run_dir / "fork-server.log"),
            root_dir=str(run_dir / "root"),
            uppers_dir=str(self._directory / "uppers"),
            shm_bytes=16 * MIB,
            epoch=new_token(),
            start_number=self._started,
            fork_server_timeout_s=self.timeout_s,
        )

        def layers(hold: Any, drop: Any) -> LayerMounts:
            self.mounts = LayerMounts(hold, drop, self._store.catalogue.layer)
            return self.mounts

        cgroups = CgroupPool(self._cgroups, Hierarchies.detect())
        self.driver = ContainerDriver(config, cgroups=cgroups, layers=layers, spawn=self._spawn)

    async def succeed(self, leave: bool) -> None:
        process = self.driver._server._process
        if process is not None:
            self._processes.append(process.pid)
        if leave:
            await self.driver.close(leave=True)
        else:
            _forget(self.driver)
        self._make()
        await self.driver.start()

    async def close(self) -> None:
        await self.driver.close()
        for pid in self._processes:  # they were started by drivers that cannot wait for them any more
            await asyncio.to_thread(os.waitpid, pid, 0)


def _forget(driver: ContainerDriver) -> None:
    """What the end of its process would do: its descriptors are closed, and nothing else happens."""
    server = driver._server
    server._closed = True
    for instance in driver._instances.values():
        instance._ending = True
        assert instance.channel is not None
        instance.channel._close()
        instance._close_pidfd()
    assert server._link is not None
    server._link.close("the edge is killed")
    server._let_go()
    if server._process is not None:
        server._process.returncode = 0


__all__ = ["Make", "Subject", "container_subject", "fake_subject"]
