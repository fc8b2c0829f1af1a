"""`dsec pack` and `dsec diff`: what they send and print."""

from __future__ import annotations

from typing import Any

from libdsec.protocol.environment import BuildProgress, ImageConfig, ImageInfo, LayerInfo
from libdsec.protocol.errors import AlreadyExistsError
from libdsec.protocol.frames import STDOUT
from libdsec.protocol.images import Change, ChangeCount, PackedDiff, Scrubbed, ScrubRule
from libdsec.testing import FakeCall

LAYER = LayerInfo("sha256:" + "1" * 64, 4096, 1 << 20, 7)
CHANGES = [
    Change("/etc/new", "added", "file", 2048),
    Change("/srv", "changed", "directory"),
    Change("/usr/a\x1b[31mb", "removed", "file", 9),
]


def answer(node: Any, **changes: Any) -> None:
    image = ImageInfo("w:1", "workspace", (LAYER,), ImageConfig(), 0.0, "debian:12")

    @node.server.answers("sandbox.pack_diff")
    async def _(call: FakeCall) -> PackedDiff:
        if call.args.ref == "taken:1":
            raise AlreadyExistsError("cannot publish taken:1: there is such an image")
        call.event(BuildProgress("write", 5))
        values = {"scrubbed": (), "scrubbed_files": 0, "scrubbed_bytes": 0, "frozen_ms": 12.4, **changes}
        return PackedDiff(image, LAYER, **values)

    @node.server.answers("sandbox.diff")
    async def _(call: FakeCall) -> ChangeCount:
        for some in (CHANGES[:2], CHANGES[2:]):
            await call.send_value(STDOUT, some)
        return ChangeCount(1, 1, 1)


def test_what_changed_is_shown_line_by_line(node: Any) -> None:
    answer(node)
    result = node.run("diff", "abc")
    assert result.exit_code == 0
    assert result.stdout == "A /etc/new (2 KiB)\nC /srv/\nD /usr/a\N{REPLACEMENT CHARACTER}[31mb\n"
    assert [change["kind"] for change in node.json("diff", "abc")] == ["added", "changed", "removed"]
    assert node.request("sandbox.diff").sandbox == f"{'abc':0<24}"


def test_every_option_of_pack_goes_out(node: Any) -> None:
    answer(node)
    options = "--kind toolkit --no-scrub --scrub /srv/*/build/ --scrub a --keep tmp/x --publish --comment made"
    assert node.run("pack", "abc", "w:1", *options.split()).exit_code == 0
    asked = node.request("sandbox.pack_diff")
    assert (asked.ref, asked.kind, asked.scrub, asked.publish) == ("w:1", "toolkit", False, True)
    assert asked.comment == "made"
    assert asked.rules == (
        ScrubRule("srv/*/build", "asked for"),
        ScrubRule("a", "asked for"),
        ScrubRule("tmp/x", keep=True),
    )
    assert node.run("pack", "abc", "w:1").exit_code == 0
    asked = node.request("sandbox.pack_diff")
    assert (asked.kind, asked.scrub, asked.publish, asked.rules) == ("workspace", True, False, ())
    assert node.run("pack", "abc", "w:1", "--kind", "odd").exit_code == 2


def test_names_of_the_build_cache_are_given_by_builds_alone(node: Any) -> None:
    name = "build-cache/" + "0" * 64 + ":7"
    for command in (("pack", "abc", name), ("image", "build", name, "--from", "dir:/x")):
        result = node.run(*command)
        assert (result.exit_code, "are the cache's of builds" in result.stderr) == (64, True)


def test_what_was_left_out_is_a_table(node: Any) -> None:
    rows = tuple(Scrubbed(f"/tmp/{number}", "temporary files", 2, 1024) for number in range(30))
    answer(node, scrubbed=rows, scrubbed_files=60, scrubbed_bytes=30720, in_toolkits=("/opt/a", "/opt/b"))
    result = node.run("pack", "abc", "w:1")
    lines = result.stdout.splitlines()
    assert lines[0] == "w:1 (workspace): 7 files, 1 MiB, the sandbox stood still for 12 ms"
    assert lines[1] == "left out: 60 entries, 30 KiB"
    assert lines[2].split() == ["PATH", "ENTRIES", "SIZE", "WHY"]
    assert lines[3].split() == ["/tmp/0", "2", "1", "KiB", "temporary", "files"]
    assert lines[-1].startswith("...")
    assert len(lines) == 24
    assert "/opt/a, /opt/b" in result.stderr
    assert len(node.json("pack", "abc", "w:1")["scrubbed"]) == 30


def test_a_name_that_is_taken(node: Any) -> None:
    answer(node)
    result = node.run("pack", "abc", "taken:1")
    assert result.exit_code == 73
    assert "cannot publish taken:1" in result.stderr
