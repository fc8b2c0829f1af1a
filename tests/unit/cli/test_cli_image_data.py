"""`dsec image fetch` and `stats`."""

from __future__ import annotations

from typing import Any

from libdsec.protocol.environment import BuildProgress, ImageConfig, ImageInfo, LayerInfo
from libdsec.protocol.errors import UnavailableError
from libdsec.protocol.images import ImageStats, ImageStatsAnswer
from libdsec.testing import FakeCall

MIB = 1 << 20
IMAGE = ImageInfo("debian:12", "base", (LayerInfo("sha256:" + "0" * 64, 4096, MIB, 9),), ImageConfig(), 0.0)


def layer(name: str, *refs: str) -> ImageStats:
    digest = "sha256:" + name * 32
    return ImageStats(digest, refs, "pre-content", 8 * MIB, 3 * MIB, MIB, 12, 7, 5.26, 14.0, 1, 2, True, 0.0)


def script(node: Any) -> None:
    @node.server.answers("image.fetch")
    async def _(call: FakeCall) -> ImageInfo:
        if call.args.ref != "debian:12":
            raise UnavailableError("cannot reach the store")
        call.event(BuildProgress("fetch", 5))
        return IMAGE

    @node.server.answers("image.stats")
    async def _(call: FakeCall) -> ImageStatsAnswer:
        if call.args.after is None:
            return ImageStatsAnswer((layer("ab", "a:1", "b:1"),), 3 * MIB, 0, "sha256:" + "ab" * 32)
        return ImageStatsAnswer((layer("cd", "c:1"),), 3 * MIB, 64 * MIB)


def test_fetch(node: Any) -> None:
    script(node)
    result = node.run("image", "fetch", "debian:12")
    assert result.stdout == "debian:12: 1 MiB are here\n"
    assert [info["ref"] for info in node.json("image", "fetch", "debian:12")] == ["debian:12"]
    refused = node.run("image", "fetch", "other:1")
    assert (refused.exit_code != 0, "cannot reach the store" in refused.stderr) == (True, True)


def test_stats_come_in_pages(node: Any) -> None:
    script(node)
    lines = node.run("image", "stats").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["abababababab", "cdcdcdcdcdcd"]
    for part in ("pre-content", "3 MiB of 8 MiB", "5.3 / 14.0 ms", "never", "a:1, b:1"):
        assert part in lines[1]
    assert lines[3] == "3 MiB of 64 MiB of the node's disk hold data that the shared store has"
    found = node.json("image", "stats", "a:1")
    assert [each["errors"] for each in found["layers"]] == [1, 1]
    assert node.request("image.stats").ref == "a:1"
