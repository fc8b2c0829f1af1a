"""`dsec image pull`, whom a registry takes the user for, and `dsec run` without a command."""

from __future__ import annotations

import base64
import json
import os
import stat
from pathlib import Path

import pytest

from dsec.cli.registry_login import kept_login_for, login_for
from libdsec.protocol.environment import BuildProgress, ImageConfig, ImageInfo, LayerInfo
from libdsec.protocol.errors import ImageNotFoundError, InvalidArgumentError, UnavailableError
from libdsec.protocol.images import MERGE_BYTES, ImagePullRequest, RegistryLogin
from libdsec.testing import FakeCall

PULLED = ImageInfo("app:v1", "base", (LayerInfo("sha256:" + "0" * 64, 4096, 1 << 20, 9),), ImageConfig(), 0.0)


@pytest.fixture(autouse=True)
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of Docker's configuration, with nothing in it."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv("DSEC_REGISTRY_AUTH", raising=False)
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker"


@pytest.fixture
def puller(node):
    @node.server.answers("image.pull")
    async def _(call: FakeCall) -> ImageInfo:
        call.event(BuildProgress("fetch", 5, bytes_total=10))
        return PULLED

    return node


def configure(docker: Path, **config: object) -> None:
    (docker / "config.json").write_text(json.dumps(config))


def helper(docker: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """A program that keeps credentials."""
    path = docker / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{docker}:{os.environ['PATH']}")


def basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def test_a_pull_and_its_options(puller):
    result = puller.run("image", "pull", "docker://r.example.com/team/app:v1")
    assert result.exit_code == 0
    assert result.stdout.startswith("app:v1: 1 layer, 1 MiB, 9 files")
    assert "fetching" in result.stderr
    assert puller.request("image.pull") == ImagePullRequest("docker://r.example.com/team/app:v1")
    options = ("--as", "a:1", "--kind", "workspace", "--plain-http", "--merge", "1g", "--json")
    assert json.loads(puller.run("image", "pull", "oci:some/dir:v1", *options).stdout)["ref"] == "app:v1"
    assert puller.request("image.pull") == ImagePullRequest(
        f"oci:{os.getcwd()}/some/dir:v1", "a:1", "workspace", None, True, 1 << 30
    )
    assert puller.run("image", "pull", "docker-archive:/a.tar", "--merge", "0").exit_code == 0
    assert puller.request("image.pull").merge_bytes == 0 != MERGE_BYTES
    assert puller.run("image", "pull", "oci:/a", "--kind", "other").exit_code == 2
    assert puller.run("image", "pull", "what is this").exit_code == 64


def test_credentials_go_along_and_nowhere_else(puller, docker, monkeypatch):
    configure(docker, auths={"r.example.com": {"auth": basic("me", "s3cret")}})
    result = puller.run("image", "pull", "docker://r.example.com/app:v1")
    assert puller.request("image.pull").login == RegistryLogin("me", "s3cret")
    assert "s3cret" not in result.stdout + result.stderr
    puller.run("image", "pull", "docker://other.example.com/app:v1")
    assert puller.request("image.pull").login is None
    monkeypatch.setenv("DSEC_REGISTRY_AUTH", "you:a:b")
    puller.run("image", "pull", "docker://other.example.com/app:v1")
    assert puller.request("image.pull").login == RegistryLogin("you", "a:b")


@pytest.mark.parametrize(
    ("auths", "place", "login"),
    [
        ({"https://index.docker.io/v1/": {"auth": basic("u", "p")}}, "docker://debian:12", RegistryLogin("u", "p")),
        ({"h:5000": {"username": "u", "password": "p"}}, "docker://h:5000/a:1", RegistryLogin("u", "p")),
        ({"https://h.io/v2/": {"auth": basic("u", "p:q")}}, "docker://h.io/a:1", RegistryLogin("u", "p:q")),
        ({"h.io": {"auth": basic("u", ""), "identitytoken": "tok"}}, "docker://h.io/a:1", RegistryLogin("", "tok")),
        ({"h.io": {}}, "docker://h.io/a:1", None),
        ({"h.io": {"auth": basic("u", "p")}}, "docker://h.io.evil.com/a:1", None),
        ({"h.io": {"auth": basic("u", "p")}}, "oci:/h.io", None),
    ],
)
def test_what_docker_keeps(docker, auths, place, login):
    configure(docker, auths=auths, detachKeys="ignored")
    assert login_for(place) == login


def test_programs_that_keep_credentials(docker, monkeypatch):
    helper(docker, monkeypatch, "good", 'read host; echo "{\\"Username\\": \\"$1@$host\\", \\"Secret\\": \\"s\\"}"')
    helper(docker, monkeypatch, "token", 'echo \'{"Username": "<token>", "Secret": "t"}\'')
    helper(docker, monkeypatch, "none", "echo credentials not found in native keychain; exit 1")
    helper(docker, monkeypatch, "bad", "echo broken >&2; exit 3")
    helper(docker, monkeypatch, "odd", "echo what")
    place = "docker://h.io/a:1"
    configure(docker, credHelpers={"h.io": "good"}, credsStore="bad")
    assert login_for(place) == RegistryLogin("get@h.io", "s")
    configure(docker, credsStore="token")
    assert login_for(place) == RegistryLogin("", "t")
    configure(docker, credsStore="none", auths={"h.io": {"auth": basic("u", "p")}})
    assert login_for(place) == RegistryLogin("u", "p")
    for program, why in (("bad", "ended with 3: broken"), ("odd", "nonsense"), ("absent", "not installed")):
        configure(docker, credsStore=program)
        with pytest.raises(UnavailableError, match=why):
            login_for(place)
    configure(docker, credsStore="../../bin/sh")
    with pytest.raises(InvalidArgumentError, match="no name of a program"):
        login_for(place)


@pytest.mark.parametrize("content", ["{", "[]", '{"auths": 5}', '{"auths": {"h.io": {"auth": "not base64"}}}'])
def test_what_docker_keeps_and_nobody_can_read(docker, content):
    (docker / "config.json").write_text(content)
    with pytest.raises(InvalidArgumentError, match="cannot read"):
        login_for("docker://h.io/a:1")


def test_the_variable_is_for_no_registry_that_a_file_names(docker, monkeypatch):
    configure(docker, auths={"h.io": {"auth": basic("u", "p")}})
    monkeypatch.setenv("DSEC_REGISTRY_AUTH", "me:s3cret")
    assert login_for("docker://h.io/a:1") == RegistryLogin("me", "s3cret")
    assert kept_login_for("docker://h.io/a:1") == RegistryLogin("u", "p")
    assert kept_login_for("docker://other.io/a:1") is None
    assert kept_login_for("oci:/h.io") is None


def test_a_variable_that_is_no_login(monkeypatch):
    monkeypatch.setenv("DSEC_REGISTRY_AUTH", "s3cret")
    with pytest.raises(InvalidArgumentError, match="USER:PASSWORD") as caught:
        login_for("docker://h.io/a:1")
    assert "s3cret" not in str(caught.value)


def test_run_without_a_command_does_what_the_image_says(node):
    own = {
        "debian:12": ImageConfig(entrypoint=("exit",), cmd=("5",)),
        "w:1": ImageConfig(),
        "w:2": ImageConfig(cmd=("cat",)),
    }

    @node.server.answers("image.inspect")
    async def _(call: FakeCall) -> ImageInfo:
        return ImageInfo(call.args.ref, "base", PULLED.layers, own[call.args.ref], 0.0)

    assert node.run("run", "--image", "debian:12").exit_code == 5
    assert node.request("exec").argv == ("exit", "5")
    assert node.run("run", "--image", "debian:12", "--workspace", "w:1").exit_code == 5
    assert node.run("run", "--image", "debian:12", "--workspace", "w:2").exit_code == 0
    assert node.request("exec").argv == ("cat",)
    assert node.run("run", "--image", "debian:12", "exit", "6").exit_code == 6
    assert node.request("exec").argv == ("exit", "6")
    own["debian:12"] = ImageConfig()
    result = node.run("run", "--image", "debian:12")
    assert result.exit_code == 64
    assert "none of its own" in result.stderr


def test_what_an_image_says_of_itself_cannot_move_the_cursor(node):
    odd = ImageConfig(env={"A": "\x1b[2J"}, cwd="/\x1b[1m", user="u\r")

    @node.server.answers("image.inspect")
    async def _(call: FakeCall) -> ImageInfo:
        return ImageInfo(call.args.ref, "base", PULLED.layers, odd, 0.0)

    assert not {"\x1b", "\r"} & {*node.run("image", "inspect", "odd:1").stdout}


def test_a_login_is_shown_without_its_password():
    login = RegistryLogin("me", "s3cret")
    assert "s3cret" not in repr(ImagePullRequest("docker://h.io/a:1", login=login)) + str(login)


def test_run_without_a_command_of_an_image_that_comes_with_the_sandbox(node):
    asked = []

    @node.server.answers("image.inspect")
    async def _(call: FakeCall) -> ImageInfo:
        asked.append(call.args.ref)
        if len(asked) == 1:
            raise ImageNotFoundError("cannot find image debian:12: it is not published here")
        return ImageInfo(call.args.ref, "base", PULLED.layers, ImageConfig(cmd=("exit", "5")), 0.0)

    assert node.run("run", "--image", "debian:12").exit_code == 5
    assert node.request("exec").argv == ("exit", "5")
