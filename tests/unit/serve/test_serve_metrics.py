"""The node's figures as Prometheus reads them."""

from __future__ import annotations

import asyncio
import re
import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dsec.serve.metrics import exporting
from libdsec.protocol.errors import InvalidArgumentError, UnavailableError
from libdsec.protocol.images import ImageStats, ImageStatsAnswer
from libdsec.protocol.nodes import NodeStatus

NODE = NodeStatus("n", "e", ("container",), 1 << 30, 1 << 20, 100, 10, 7, True)


def layer(digest: str, source: str) -> ImageStats:
    return ImageStats(digest, ("a:1",), source, 1000, 400, 300, 2, 5, 1.0, 250.0, 1, 3, False, 0.0)


STATS = ImageStatsAnswer((layer("sha256:aa", "pre-content"), layer("sha256:bb", "local")), 4096, 8192)


async def figures() -> tuple[NodeStatus, ImageStatsAnswer]:
    return NODE, STATS


def ask(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


async def test_node_and_layers() -> None:
    async with exporting("127.0.0.1:0", figures) as port:
        told = await asyncio.to_thread(ask, port)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(told)
        for sample in family.samples
    }
    one = ("sha256:aa", "pre-content")
    wanted = {
        ("dsec_sandboxes",): 7,
        ("dsec_memory_bytes",): 1 << 30,
        ("dsec_memory_requested_bytes",): 1 << 20,
        ("dsec_healthy",): 1,
        ("dsec_cache_bytes",): 4096,
        ("dsec_cache_limit_bytes",): 8192,
        ("dsec_layer_data_bytes", *one): 1000,
        ("dsec_layer_present_bytes", *one): 400,
        ("dsec_layer_users", *one): 3,
        ("dsec_layer_read_wait_p99_seconds", *one): 0.25,
        ("dsec_layer_fetched_bytes_total", *one): 300,
        ("dsec_layer_requests_total", *one): 2,
        ("dsec_layer_reads_waited_total", *one): 5,
        ("dsec_layer_read_errors_total", *one): 1,
    }
    assert {key: value for key, value in found.items() if not key[0].startswith("dsec_server_")} == wanted
    assert found[("dsec_server_process_resident_memory_bytes",)] > 0
    with pytest.raises(urllib.error.URLError, match="refused"):
        await asyncio.to_thread(ask, port)


async def test_figures_that_cannot_be_had_are_an_error_of_that_answer_alone() -> None:
    answers = iter((UnavailableError("not now"), None))

    async def sometimes() -> tuple[NodeStatus, ImageStatsAnswer]:
        if (error := next(answers)) is not None:
            raise error
        return NODE, STATS

    async with exporting("127.0.0.1:0", sometimes) as port:
        with pytest.raises(urllib.error.HTTPError, match="500"):
            await asyncio.to_thread(ask, port)
        assert "dsec_sandboxes 7.0" in await asyncio.to_thread(ask, port)


@pytest.mark.parametrize("address", ["9464", ":9464", "localhost:", "localhost:70000", "localhost:http"])
async def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(repr(address))):
        async with exporting(address, figures):
            pass


async def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=f"cannot serve metrics at {address}: Address already in use"):
            async with exporting(address, figures):
                pass
    with pytest.raises(UnavailableError, match="cannot serve metrics at"):
        async with exporting("no-such-host.invalid:1", figures):
            pass
