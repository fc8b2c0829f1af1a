"""`dsec image push|export|diff|history`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import msgspec
import pytest

from dsec.cli.change_lines import change_line
from libdsec.protocol.calls import Empty
from libdsec.protocol.environment import BuildProgress, LayerInfo
from libdsec.protocol.errors import ConflictError
from libdsec.protocol.frames import STDOUT
from libdsec.protocol.images import Change, ChangeCount, HistoryEntry, ImageHistory, ImagePushed
from libdsec.testing import FakeCall

TAR = bytes(range(256)) * 3000
CHANGES = (
    Change("/etc", "changed", "directory"),
    Change("/etc/\x1b[31m", "added", "file", 5),
    Change("/usr/old", "removed", "directory"),
)
LAYER = LayerInfo("sha256:" + "ab" * 32, 4096, 1 << 20, 9)


@pytest.fixture(autouse=True)
def answers(node):
    @node.server.answers("image.push")
    async def _(call: FakeCall) -> ImagePushed:
        call.event(BuildProgress("pack", 1))
        call.event(BuildProgress("send", 1))
        return ImagePushed(call.args.destination, "sha256:" + "1" * 64, 2048)

    @node.server.answers("image.export")
    async def _(call: FakeCall) -> Empty:
        await call.send(STDOUT, TAR)
        if call.args.ref == "part:1":
            raise ConflictError("cannot read layer sha256:1: fetch the image first")
        return Empty()

    @node.server.answers("image.diff")
    async def _(call: FakeCall) -> ChangeCount:
        for changes in (CHANGES[:1], CHANGES[1:]):
            await call.send(STDOUT, msgspec.msgpack.encode(changes))
        return ChangeCount(1, 1, 1)

    @node.server.answers("image.history")
    async def _(call: FakeCall) -> ImageHistory:
        return ImageHistory(call.args.ref, (HistoryEntry(LAYER, "build from dir:/x\x1b[1m", 0.0, "first:1"),))


def test_push(node, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    result = node.run("image", "push", "app:v1", "oci:layout:v1")
    assert result.exit_code == 0
    assert node.request("image.push").destination == f"oci:{tmp_path}/layout:v1"
    assert result.stderr == "app:v1: packing layers\napp:v1: sending\n"
    assert result.stdout == f"oci:{tmp_path}/layout:v1: sha256:{'1' * 64}, 2 KiB were sent\n"
    monkeypatch.setenv("DSEC_REGISTRY_AUTH", "me:secret")
    told = node.json("image", "push", "app:v1", "docker://localhost:5000/app:v1", "--plain-http")
    assert told["bytes_sent"] == 2048
    request = node.request("image.push")
    assert (request.login.user, request.login.password, request.plain_http) == ("me", "secret", True)


def test_export_to_a_file(node, tmp_path):
    target = tmp_path / "image.tar"
    assert node.run("image", "export", "debian:12", str(target)).stdout == f"{target}: 750 KiB\n"
    assert target.read_bytes() == TAR
    assert node.json("image", "export", "debian:12", str(target))["bytes"] == len(TAR)


def test_an_export_that_ends_early_leaves_no_file(node, tmp_path):
    target = tmp_path / "made" / "image.tar"
    target.parent.mkdir()
    result = node.run("image", "export", "part:1", str(target))
    assert (result.exit_code, "fetch the image first" in result.stderr) == (73, True)
    assert os.listdir(target.parent) == []
    assert node.run("image", "export", "debian:12", str(tmp_path / "none" / "image.tar")).exit_code == 74


def test_export_to_standard_output(node):
    assert node.run("image", "export", "debian:12", "-").stdout_bytes == TAR
    result = node.run("image", "export", "debian:12", "-", "--json")
    assert (result.exit_code, "name a FILE" in result.stdout) == (64, True)


def test_no_tar_goes_to_a_terminal(node):
    leader, follower = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dsec", "image", "export", "debian:12", "-"],
            stdin=subprocess.DEVNULL,
            stdout=follower,
            stderr=subprocess.PIPE,
            env={**os.environ, "DSEC_URL": node.url},
            timeout=30,
        )
    finally:
        os.close(leader)
        os.close(follower)
    assert (done.returncode, b"terminal" in done.stderr) == (64, True)
    assert not [name for name, _ in node.server.calls if name == "image.export"]


def test_diff(node):
    shown = node.run("image", "diff", "a:1", "b:1").stdout.splitlines()
    assert shown == ["C /etc/", "A /etc/\ufffd[31m", "D /usr/old/"]
    told = node.json("image", "diff", "a:1", "b:1")
    assert [change["path"] for change in told["changes"]] == [change.path for change in CHANGES]
    assert (told["added"], told["changed"], told["removed"]) == (1, 1, 1)


def test_history(node):
    header, row = node.run("image", "history", "debian:12").stdout.splitlines()
    assert header.split()[0] == "LAYER"
    assert row.split()[0] == "abababababab"
    assert row.endswith("build from dir:/x\ufffd[1m")
    told = json.loads(node.run("image", "history", "debian:12", "--json").stdout)
    assert told["entries"][0]["layer"]["digest"] == LAYER.digest


def test_the_root_is_one_slash():
    assert change_line(Change("/", "changed", "directory")) == "C /"
