"""A whole node in one process: every room as it is, over a fake driver and a fake store, behind a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dsec.apiserver import Service, serve
from dsec.commandlog import Bounds, CommandLog
from dsec.edge import Edge, Node
from dsec.edge.clock import Clock, SystemClock
from dsec.edge.options import Machine as Resources
from dsec.serve.node import make_service, open_journal
from libdsec.protocol.nodes import DoctorReport, Finding
from libdsec.protocol.spec import MIB

from .fake_clock import FakeClock
from .fake_driver import FakeDriver, Machine
from .fake_images import FakeImages
from .wire_client import WireClient, wire_client

MACHINE = Resources(memory_bytes=8192 * MIB, cpus=4, pids=32_768, default_memory_bytes=2048 * MIB, default_pids=1024)


@dataclass
class FakeNode:
    edge: Edge
    driver: FakeDriver
    images: FakeImages
    socket: str
    service: Service
    shutdown: asyncio.Event
    leave: bool = False

    def client(self, **options: Any) -> AbstractAsyncContextManager[WireClient]:
        return wire_client(self.socket, **options)


def node_description(**changes: Any) -> Node:
    values: dict[str, Any] = {
        "name": "fake",
        "edge_prefix": "fakenode",
        "machine": MACHINE,
        "memory_for_requests": 4096 * MIB,
        "pids_for_requests": 4096,
        "id_base": 0x7000_0000,
        "id_ranges": 64,
        "kept_final": 16,
    }
    return Node(**(values | changes))


@asynccontextmanager
async def fake_node(
    directory: str, clock: FakeClock | None = None, machine: Machine | None = None, **changes: Any
) -> AsyncIterator[FakeNode]:
    """`changes` are of the `Node` that the edge is told about. A second node in the same directory on the same
    machine is a successor of the first: set `leave` on that one, so that it ends without its sandboxes."""
    driver, images = FakeDriver(machine=machine), FakeImages()
    time: Clock = clock or SystemClock()
    journal = open_journal(f"{directory}/edge.db", asyncio.get_running_loop())
    async with asyncio.TaskGroup() as tasks:

        def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            return tasks.create_task(work)

        edge = Edge(
            node_description(**changes),
            drivers={driver.backend: driver},
            images=images,
            journal=journal,
            log=CommandLog(journal, f"{directory}/logs", time, bounds=Bounds()),
            clock=time,
            spawn=spawn,
            probe=lambda: DoctorReport((Finding("fake", "ok", "nothing was tried"),)),
        )
        shutdown = asyncio.Event()
        node = FakeNode(
            edge,
            driver,
            images,
            f"{directory}/api.sock",
            make_service(edge, shutdown.set, lambda _: shutdown.set()),
            shutdown,
        )
        try:
            await edge.start()
            async with serve(node.service, node.socket):
                yield node
                if not node.leave:
                    await edge.stop_all()
        finally:
            await edge.close(leave=node.leave)
            await journal.close()
