"""`dsec image publish`, `pin`, `unpin` and `gc`."""

from __future__ import annotations

from libdsec.protocol.environment import BuildProgress, ImageConfig, ImageInfo
from libdsec.protocol.errors import UnsupportedOperationError
from libdsec.protocol.images import Collected, ImageGcAnswer, ImagePublished
from libdsec.testing import FakeCall


def script(node):
    @node.server.answers("image.publish")
    async def _(call: FakeCall) -> ImagePublished:
        if call.args.ref != "debian:12":
            raise UnsupportedOperationError("cannot publish: this node has no shared store")
        call.event(BuildProgress("publish", 5))
        return ImagePublished("debian:12", "s3://bucket", 10, 4, 3 << 20)

    @node.server.answers("image.pin")
    async def _(call: FakeCall) -> ImageInfo:
        return ImageInfo(call.args.ref, "base", (), ImageConfig(), 0.0)

    @node.server.answers("image.gc")
    async def _(call: FakeCall) -> ImageGcAnswer:
        gone = Collected("sha256:" + "ab" * 32, ("app:v1", "app:v2"), 1 << 20, "unused for a day")
        return ImageGcAnswer((gone,), 1 << 20, 5 << 20)


def test_publish(node):
    script(node)
    result = node.run("image", "publish", "debian:12")
    assert result.stdout == "debian:12 is in s3://bucket; 4 of 10 chunks, 3 MiB were sent\n"
    assert "publishing" in result.stderr
    assert node.json("image", "publish", "debian:12")["chunks_new"] == 4
    refused = node.run("image", "publish", "other:1")
    assert (refused.exit_code, "no shared store" in refused.stderr) == (69, True)


def test_pin_and_unpin(node):
    script(node)
    assert node.run("image", "pin", "a:1", "b:1").stdout == "a:1\nb:1\n"
    assert node.request("image.pin").pinned is True
    assert node.json("image", "unpin", "a:1") == {"unpinned": ["a:1"]}
    assert node.request("image.pin").pinned is False


def test_gc(node):
    script(node)
    lines = node.run("image", "gc", "--keep", "2g", "--dry-run").stdout.splitlines()
    asked = node.request("image.gc")
    assert (asked.keep_bytes, asked.dry_run) == (2 << 30, True)
    assert lines[1].split()[0] == "abababababab"
    assert "app:v1, app:v2" in lines[1]
    assert lines[2] == "1 MiB would be freed, 5 MiB kept"
    assert node.json("image", "gc")["bytes"] == 1 << 20
    asked = node.request("image.gc")
    assert (asked.keep_bytes, asked.dry_run) == (0, False)
    assert node.run("image", "gc", "--keep", "much").exit_code == 2


def test_ls_of_the_store(node):
    assert node.run("image", "ls", "--store", "-q").stdout == "debian:12\n"
    assert node.request("image.list").store is True
    node.run("image", "ls")
    assert node.request("image.list").store is False
