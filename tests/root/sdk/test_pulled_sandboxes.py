"""Images of a real registry, pulled by name and run."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.testing.tiny_root import make_tiny_root
from libdsec.errors import AlreadyExistsError, NotFoundError, UnauthenticatedError
from libdsec.protocol.images import RegistryLogin
from libdsec.sync import DSecClient, DSecContainerRunArgs
from real_registry import PASSWORD, USER, Registry, real_registry

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "unit" / "store"))

from oci_layouts import directory, file, tar, whiteout, write_layout

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap", "docker-registry", "skopeo")

LOGIN = RegistryLogin(USER, PASSWORD)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """With an image that says what is to be run."""
    place = tmp_path_factory.mktemp("registry")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(make_tiny_root(str(place / "root")), ".")
    defaults = {
        "Env": ["COLOUR=blue"],
        "User": "user",
        "WorkingDir": "/srv/app",
        "Entrypoint": ["/bin/sh", "-c", 'echo "$COLOUR $(id -un) $(pwd) $0"'],
        "Cmd": ["said"],
    }
    above = [
        tar(directory(b"srv"), directory(b"srv/app", uid=1000, gid=1000), file(b"srv/app/data", b"of the image\n")),
        tar(whiteout(b"bin/seq"), file(b"tmp/left", b"x", uid=1000)),
    ]
    write_layout(place / "layout", [packed.getvalue(), *above], defaults=defaults)
    (place / "served").mkdir()
    with real_registry(place / "served") as registry:
        registry.put(f"oci:{place}/layout:v1", "team/tiny:v1")
        yield registry


@pytest.fixture(autouse=True)
def nothing_pulled_is_left(client: DSecClient) -> Iterator[None]:
    before = {info.ref for info in client.images()}
    yield
    for info in client.images():
        if info.ref not in before:
            client.remove_image(info.ref)


def test_the_command_pulls_and_runs_what_the_image_says(dsec, registry, monkeypatch):
    source = f"docker://{registry.host}/team/tiny:v1"
    monkeypatch.setenv("DOCKER_CONFIG", "/nonexistent")
    refused = dsec("image", "pull", source, "--plain-http")
    assert refused.returncode == 77, refused.stderr
    monkeypatch.setenv("DSEC_REGISTRY_AUTH", f"{USER}:{PASSWORD}")
    pulled = dsec("image", "pull", source, "--plain-http", "--as", "pulled:1")
    assert pulled.returncode == 0, pulled.stderr
    assert pulled.stdout.startswith("pulled:1: 1 layer,")
    assert dsec("run", "--image", "pulled:1").stdout == "blue user /srv/app said\n"
    assert dsec("run", "--image", "pulled:1", "cat", "data").stdout == "of the image\n"


@pytest.mark.parametrize("merge_bytes", [0, 1 << 30])
def test_a_pulled_image_is_like_any_other(client, registry, merge_bytes):
    source = f"docker://{registry.host}/team/tiny:v1"
    info = client.pull_image(source, login=LOGIN, plain_http=True, merge_bytes=merge_bytes)
    assert (info.ref, len(info.layers)) == ("team/tiny:v1", 1 if merge_bytes else 3)
    assert client.verify_image(info.ref) == client.image(info.ref) == info
    with client.run_container(DSecContainerRunArgs(container_image=info.ref)) as sandbox:
        seen = sandbox.run_shell("ls /bin/seq; stat -c %a /tmp; cat /tmp/left; touch /tmp/mine; pwd", user="root")
        assert seen.stdout.split() == ["1777", "x/srv/app"]
    with pytest.raises(AlreadyExistsError):
        client.pull_image(source, login=LOGIN, plain_http=True)


def test_what_a_registry_refuses(client, registry):
    with pytest.raises(UnauthenticatedError):
        client.pull_image(f"docker://{registry.host}/team/tiny:v1", login=RegistryLogin(USER, "wrong"), plain_http=True)
    with pytest.raises(NotFoundError):
        client.pull_image(f"docker://{registry.host}/team/none:v1", login=LOGIN, plain_http=True)


def test_the_log_of_the_node_knows_no_password(node_environment):
    for path in Path(node_environment["DSEC_RUN_DIR"]).rglob("*log*"):
        if path.is_file():
            assert PASSWORD.encode() not in path.read_bytes()
    assert os.environ.get("DSEC_REGISTRY_AUTH") is None
