"""A whole node in one process: every room as it is, over a fake driver and a fake store, behind a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dsec.apiserver import Service, serve
from dsec.edge import Edge, Node
from dsec.edge.clock import SystemClock
from dsec.edge.options import Machine
from dsec.serve.node import make_service
from libdsec.protocol.nodes import DoctorReport, Finding
from libdsec.protocol.spec import MIB

from .fake_clock import FakeClock
from .fake_driver import FakeDriver
from .fake_images import FakeImages
from .wire_client import WireClient, wire_client

MACHINE = Machine(memory_bytes=8192 * MIB, cpus=4, pids=32_768, default_memory_bytes=2048 * MIB, default_pids=1024)


@dataclass
class FakeNode:
    edge: Edge
    driver: FakeDriver
    images: FakeImages
    socket: str
    service: Service
    shutdown: asyncio.Event

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
async def fake_node(directory: str, clock: FakeClock | None = None, **changes: Any) -> AsyncIterator[FakeNode]:
    """`changes` are of the `Node` that the edge is told about."""
    driver, images = FakeDriver(), FakeImages()
    async with asyncio.TaskGroup() as tasks:

        def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            return tasks.create_task(work)

        edge = Edge(
            node_description(**changes),
            drivers={driver.backend: driver},
            images=images,
            clock=clock or SystemClock(),
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
        await edge.start()
        try:
            async with serve(node.service, node.socket):
                yield node
                await edge.stop_all()
        finally:
            await edge.close()
