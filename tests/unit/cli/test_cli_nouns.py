"""`dsec image`, `cp`, `version`, `completion`, and the help of everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import typer

from dsec.cli.cp import Place, place
from dsec.cli.main import _COMMANDS, app
from dsec.cli.options import mebibytes, seconds
from dsec.cli.output import amount
from libdsec.protocol.errors import PathNotFoundError
from libdsec.protocol.files import FileAnswer, FileInfo
from libdsec.testing import FakeCall


def test_image_ls_inspect_rm(node):
    assert node.run("image", "ls").stdout.splitlines()[1].split()[:4] == ["debian:12", "base", "1", "1"]
    assert node.run("image", "ls", "-q").stdout == "debian:12\n"
    assert node.json("image", "ls")[0]["ref"] == "debian:12"
    assert "sha256:" in node.run("image", "inspect", "debian:12").stdout
    assert node.json("image", "inspect", "debian:12")["kind"] == "base"
    result = node.run("image", "rm", "debian:12")
    assert (result.exit_code, "a sandbox uses it" in result.stderr) == (73, True)


def test_an_image_that_stays_keeps_no_other_from_going(node):
    result = node.run("image", "rm", "debian:12", "app:v1", "app:v1")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (73, "app:v1\n", 1)
    told = node.json("image", "rm", "debian:12", "app:v1")
    assert told["removed"] == ["app:v1"]
    assert told["failed"]["debian:12"]["code"] == "conflict"


def test_image_build(node, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = node.run("image", "build", "app:v1", "--from", "dir:./tree", "--kind", "workspace", "-e", "A=1")
    assert result.exit_code == 0
    assert result.stderr == "app:v1: writing layers\n"
    request = node.request("image.build")
    assert (request.ref, request.source, request.kind) == ("app:v1", f"dir:{tmp_path}/tree", "workspace")
    assert request.config.env == {"A": "1"}
    node.run("image", "build", "x:1", "--from", "release:bookworm", "--package", "git", "--mirror", "file:/m")
    assert (node.request("image.build").packages, node.request("image.build").mirror) == (("git",), "file:/m")
    for bad in (["x:1", "--from", "bookworm"], ["--from", "release:bookworm"]):
        assert node.run("image", "build", *bad).exit_code == 64
    assert node.run("image", "build", "x:1", "--kind", "nope").exit_code == 2


def test_image_build_of_the_machines_own_release(node, monkeypatch):
    release = {"ID": "ubuntu", "VERSION_ID": "24.04", "VERSION_CODENAME": "noble"}
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: release)
    node.run("image", "build", "--package", "git")
    request = node.request("image.build")
    assert (request.ref, request.source, request.packages) == ("ubuntu:24.04", "release:noble", ("python3", "git"))
    release = {"ID": "debian", "VERSION_CODENAME": "forky"}
    node.run("image", "build")
    assert node.request("image.build").ref == "debian:forky"
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "alpine", "PRETTY_NAME": "Alpine"})
    result = node.run("image", "build")
    assert (result.exit_code, "--from" in result.stderr) == (64, True)


def test_cp_both_ways(node, tmp_path):
    held: dict[str, bytes] = {}

    @node.server.answers("file.stat")
    async def _(call: FakeCall) -> FileAnswer:
        if call.args.path == "/dir":
            return FileAnswer(info=FileInfo("/dir", "directory", 0, 0o755, 0, 0, 0))
        if call.args.path not in held:
            raise PathNotFoundError("cannot find it", path=call.args.path)
        return FileAnswer(info=FileInfo(call.args.path, "file", 1, 0o644, 0, 0, 0))

    @node.server.answers("file.write")
    async def _(call: FakeCall) -> FileAnswer:
        held[call.args.path] = await call.receive()
        return FileAnswer(len(held[call.args.path]))

    @node.server.answers("file.read")
    async def _(call: FakeCall) -> FileAnswer:
        await call.send(2, held[call.args.path])
        return FileAnswer(len(held[call.args.path]))

    local = tmp_path / "file"
    local.write_bytes(b"content")
    assert node.run("cp", str(local), "xyz:/new").exit_code == 0
    assert node.run("cp", str(local), "xyz:/dir", "-u", "nobody").exit_code == 0
    assert node.request("file.write").user == "nobody"
    assert held == {"/new": b"content", "/dir/file": b"content"}
    assert node.run("cp", "xyz:/dir/file", str(tmp_path / "back")).exit_code == 0
    assert (tmp_path / "back").read_bytes() == b"content"
    (tmp_path / "into").mkdir()
    assert json.loads(node.run("cp", "--json", "xyz:/new", str(tmp_path / "into")).stdout)["bytes"] == 7
    assert (tmp_path / "into/new").read_bytes() == b"content"
    for bad in ((str(local), str(local)), ("xyz:/a", "abc:/b")):
        assert node.run("cp", *bad).exit_code == 64
    assert node.run("cp", str(local), "xyz:/no/").exit_code == 66
    assert node.run("cp", "xyz:/none", str(tmp_path / "none")).exit_code == 66
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("text", "is_place"),
    [
        ("a", Place(None, "a")),
        ("s:/a:b", Place("s", "/a:b")),
        ("s:", Place("s", ".")),
        ("./s:/a", Place(None, "./s:/a")),
        ("/x:y", Place(None, "/x:y")),
        (":x", Place(None, ":x")),
    ],
)
def test_places(text, is_place):
    assert place(text) == is_place


def test_quantities():
    sizes = {"512": 512, "512m": 512, "2G": 2048, "1.5gb": 1536, "512KiB": 0.5, "1T": 1024 * 1024}
    assert {text: mebibytes(text) for text in sizes} == sizes
    times = {"30": 30, "500ms": 0.5, "1.5h": 5400, "2min": 120, "2m": 120, "1d": 86400}
    assert {text: seconds(text) for text in times} == times
    for bad in ("", "0", "-1", "1x", "m", "1 2"):
        for read in (mebibytes, seconds):
            with pytest.raises(typer.BadParameter):
                read(bad)
    assert [amount(n) for n in (None, 0, 1023, 1024, 123 << 20, 5 << 40)] == [
        "-",
        "0 B",
        "1023 B",
        "1 KiB",
        "123 MiB",
        "5 TiB",
    ]


def test_version(node):
    assert "no server runs" in node.run("version").stdout
    assert node.json("version")["generation"] == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(node, shell):
    assert "_DSEC_COMPLETE" in node.run("completion", shell).stdout


@pytest.mark.parametrize("name", [*_COMMANDS, "image build", "image ls", "image inspect", "image rm", "job ls"])
def test_every_command_explains_itself(node, name):
    result = node.run(*name.split(), "--help")
    assert result.exit_code == 0
    assert "dsec " + name.split()[0] in result.stdout or name in ("image", "rollout", "bench", "node", "job")


def test_names_complete_without_importing_everything():
    environment = {**os.environ, "_DSEC_COMPLETE": "complete_bash", "COMP_WORDS": "dsec sto", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-m", "dsec"], env=environment, capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["stop"]


def test_help_imports_neither_the_sdk_nor_rich():
    code = (
        "import sys; sys.argv = ['dsec', '--help']\n"
        "from dsec.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        "print([m for m in ('rich', 'msgspec', 'asyncio', 'libdsec') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stderr == "[]\n"
    assert "Commands:" in done.stdout
    assert app is not None


def test_every_command_has_an_example_and_json_where_it_ends_in_an_answer():
    missing = []
    for path, command in _commands(typer.main.get_command(app), ()):
        options = {name for parameter in command.params for name in parameter.opts}
        if "--json" not in options and path not in (("shell",), ("completion",)):
            missing.append((path, "--json"))
        if f"dsec {' '.join(path)}" not in (command.help or ""):
            missing.append((path, "an example"))
    assert missing == []


def _commands(group, path):
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command
