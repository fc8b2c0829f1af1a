"""The node's figures for Prometheus, by HTTP at `/metrics`, where its settings name an address.

They are what `dsec node status` and `dsec image stats` say, asked for anew each time, and what the server itself uses.
Who can connect can read them; there is no secret in them. Of layers those are told that lie in a shared store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from libdsec.protocol.errors import InvalidArgumentError, UnavailableError
from libdsec.protocol.images import ImageStats, ImageStatsAnswer
from libdsec.protocol.nodes import NodeStatus

ANSWER_S: Final = 10.0
"""For the figures of one answer."""

Figures = Callable[[], Coroutine[Any, Any, tuple[NodeStatus, ImageStatsAnswer]]]
"""Runs on the event loop."""

_NODE: Final[tuple[tuple[str, str, Callable[[NodeStatus], float]], ...]] = (
    ("dsec_sandboxes", "Sandboxes that have not ended.", lambda node: node.sandboxes),
    ("dsec_memory_bytes", "Memory that sandboxes may ask for.", lambda node: node.memory_bytes),
    ("dsec_memory_requested_bytes", "Memory that sandboxes have asked for.", lambda node: node.memory_requested),
    ("dsec_healthy", "1 if the node takes sandboxes.", lambda node: node.healthy),
)
_CACHE: Final[tuple[tuple[str, str, Callable[[ImageStatsAnswer], float]], ...]] = (
    ("dsec_cache_bytes", "Disk that data takes which the shared store has.", lambda stats: stats.cache_bytes),
    ("dsec_cache_limit_bytes", "What it may take; 0 is no limit.", lambda stats: stats.cache_limit),
)
_LAYER_GAUGES: Final[tuple[tuple[str, str, Callable[[ImageStats], float]], ...]] = (
    ("dsec_layer_data_bytes", "Length of a layer's data.", lambda layer: layer.data_bytes),
    ("dsec_layer_present_bytes", "What of it is on this node.", lambda layer: layer.present_bytes),
    ("dsec_layer_users", "Sandboxes that have the layer.", lambda layer: layer.in_use),
    (
        "dsec_layer_read_wait_p99_seconds",
        "How long 99 of the last 100 reads that waited did so at most.",
        lambda layer: layer.wait_p99_ms / 1000,
    ),
)
_LAYER_COUNTERS: Final[tuple[tuple[str, str, Callable[[ImageStats], float]], ...]] = (
    ("dsec_layer_fetched_bytes", "What came from the shared store, as it lies there.", lambda one: one.fetched_bytes),
    ("dsec_layer_requests", "Requests to the shared store.", lambda one: one.requests),
    ("dsec_layer_reads_waited", "Reads that waited for data to come.", lambda one: one.reads_waited),
    ("dsec_layer_read_errors", "Reads that were refused since data did not come.", lambda one: one.errors),
)


@asynccontextmanager
async def exporting(address: str, figures: Figures) -> AsyncIterator[int]:
    """Serve the figures at `HOST:PORT` until the end of the block. Gives the port.

    :raises InvalidArgumentError: not such an address.
    :raises UnavailableError: it cannot be listened at.
    """
    host, port = _parsed(address)
    registry = CollectorRegistry()
    registry.register(_NodeCollector(asyncio.get_running_loop(), figures))
    ProcessCollector(namespace="dsec_server", registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise UnavailableError(f"cannot serve metrics at {address}: {error.strerror or error}") from None
    structlog.get_logger("dsec.serve").info("metrics", address=f"{host}:{server.server_port}")

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    try:
        yield server.server_port
    finally:
        # in a thread: an answer under way wants the loop
        await asyncio.to_thread(stop)


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise InvalidArgumentError(
            f"cannot serve metrics at {address!r}: it must be HOST:PORT, as in 127.0.0.1:9464", field="metrics"
        )
    return host.strip("[]"), int(port)


class _NodeCollector(Collector):
    """Asked in threads of the HTTP server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, figures: Figures) -> None:
        self._loop, self._figures = loop, figures

    def describe(self) -> list[Metric]:
        """Nothing is asked for before somebody wants to know."""
        return []

    def collect(self) -> Iterator[Metric]:
        node, stats = asyncio.run_coroutine_threadsafe(self._figures(), self._loop).result(ANSWER_S)
        for name, about, of_node in _NODE:
            yield GaugeMetricFamily(name, about, of_node(node))
        for name, about, of_cache in _CACHE:
            yield GaugeMetricFamily(name, about, of_cache(stats))
        layers = [layer for layer in stats.layers if layer.source != "local"]
        for kinds, family in ((_LAYER_GAUGES, GaugeMetricFamily), (_LAYER_COUNTERS, CounterMetricFamily)):
            for name, about, of_layer in kinds:
                metric = family(name, about, labels=("layer", "source"))
                for layer in layers:
                    metric.add_metric((layer.layer, layer.source), of_layer(layer))
                yield metric
