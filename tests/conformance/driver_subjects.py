"""The drivers under test, each with a way to order a sandbox from it and to count what it has taken."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsec.config import load
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


Make = Callable[[], AbstractAsyncContextManager[Subject]]


@asynccontextmanager
async def fake_subject() -> AsyncIterator[Subject]:
    from dsec.drivers.base import End

    driver = FakeDriver()
    await driver.start()

    def kill(sandbox: str) -> None:
        driver.instances[sandbox].die(End("init_killed", "PID 1 was killed by signal 9", {}))

    yield Subject(
        driver,
        ("sha256:0",),
        Slots(0x7000_0000, 64),
        lambda: {"instances": len(driver.instances)},
        kill,
        new_edge_prefix(),
    )
    await driver.close()


@asynccontextmanager
async def container_subject(directory: Path) -> AsyncIterator[Subject]:
    """A real one, in directories and control groups of its own, with ids beyond those of an ordinary node."""
    from dsec.config import find_aether

    store = LocalStore(str(directory / "state"))
    request = ImageBuildRequest("tiny:1", f"dir:{make_tiny_root(str(directory / 'root-files'))}")
    image = await asyncio.to_thread(build_image, store, request, lambda step: None)
    prefix = new_edge_prefix()
    run_dir = directory / "run"
    run_dir.mkdir()
    async with asyncio.TaskGroup() as tasks:

        def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            return tasks.create_task(work)

        mounts: list[LayerMounts] = []

        def layers(hold: Any, drop: Any) -> LayerMounts:
            mounts.append(LayerMounts(hold, drop, store.catalogue.layer))
            return mounts[0]

        config = ContainerConfig(
            aether=find_aether(load()),
            socket_path=str(run_dir / "fork-server.sock"),
            log_path=str(run_dir / "fork-server.log"),
            root_dir=str(run_dir / "root"),
            uppers_dir=str(directory / "uppers"),
            shm_bytes=16 * MIB,
            epoch=new_token(),
        )
        driver = ContainerDriver(
            config, cgroups=CgroupPool(f"dsec-{prefix}", Hierarchies.detect()), layers=layers, spawn=spawn
        )
        instances = driver._instances

        def taken() -> dict[str, int]:
            uppers = list(Path(config.uppers_dir).glob("[0-9a-f]*/*"))
            used = sum(mounts[0].in_use(layer.digest) for layer in image.layers)
            return {"instances": len(instances), "uppers": len(uppers), "layers": used}

        def kill(sandbox: str) -> None:
            os.kill(instances[sandbox].pid, 9)

        await driver.start()
        try:
            slots = Slots(0x7000_0000, 64)
            yield Subject(driver, tuple(layer.digest for layer in image.layers), slots, taken, kill, prefix)
        finally:
            await driver.close()
            store.close()


__all__ = ["Make", "Subject", "container_subject", "fake_subject"]
