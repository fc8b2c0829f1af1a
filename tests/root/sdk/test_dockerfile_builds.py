"""Dockerfiles on a real node: two stages built, run, and built again from what was kept; steps that fail."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import libdsec
from dsec.dockerfile import run
from libdsec.protocol.environment import ImageInfo
from libdsec.protocol.errors import InvalidArgumentError
from libdsec.protocol.images import RegistryLogin
from libdsec.sync import DSecClient, DSecContainerRunArgs
from real_registry import PASSWORD, USER, real_registry

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether", "mmdebstrap")

Dsec = Callable[..., subprocess.CompletedProcess[str]]

DOCKERFILE = """\
ARG BASE
FROM ${BASE} AS build
ARG GREETING=hello
ENV LANG=C WHERE=/src
WORKDIR $WHERE
COPY program.sh data/ ./
RUN echo "$GREETING from $(pwd)" > greeting && ln greeting same && ln -s greeting link
RUN ["/bin/sh", "-c", "touch a.o b.o && chmod 4755 program.sh"]

FROM ${BASE}
LABEL purpose="a test"
COPY --from=build --chown=www-data:123 /src/ /opt/app/
COPY --from=build /src/*.o /src/link /objects/
USER www-data
WORKDIR /opt/app
RUN id -un > /tmp/who
ENTRYPOINT ["/opt/app/program.sh"]
CMD ["argument"]
"""
STEPS = 6
"""That change files."""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one").write_text("1")
    (tmp_path / "data" / "two").write_text("2")
    (tmp_path / "program.sh").write_text("#!/bin/sh\necho $1\n")
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / ".dockerignore").write_text("**/two\n")
    return tmp_path


@pytest.fixture
def built(client: DSecClient) -> Iterator[None]:
    """Takes away the images of the test and of its steps."""
    before = {info.ref for info in client.images()}
    yield
    left = {info.ref for info in client.images()} - before
    for ref in sorted(left):
        with contextlib.suppress(Exception):
            client.remove_image(ref)
    assert {info.ref for info in client.images()} == before
    assert client.list() == ()


def build(dsec: Dsec, image: str, context: Path, ref: str, *options: str) -> subprocess.CompletedProcess[str]:
    return dsec("image", "build", ref, str(context), "--build-arg", f"BASE={image}", *options)


def counts(done: subprocess.CompletedProcess[str]) -> tuple[int, int]:
    """Steps that were cached, and that were run."""
    assert done.returncode == 0, done.stderr
    steps = [line for line in done.stderr.splitlines() if line.startswith("[") and "] FROM" not in line]
    cached = [line for line in steps if line.endswith("(cached)")]
    return len(cached), len(steps) - len(cached)


def said(client: DSecClient, ref: str, command: str) -> str:
    with client.run_container(DSecContainerRunArgs(container_image=ref)) as sandbox:
        return sandbox.run_shell(command).check().stdout


@pytest.mark.usefixtures("built")
def test_two_stages(dsec: Dsec, client: DSecClient, image: str, context: Path) -> None:
    assert counts(build(dsec, image, context, "test/app:1")) == (0, STEPS)
    info = client.image("test/app:1")
    assert (info.config.entrypoint, info.config.cmd) == (("/opt/app/program.sh",), ("argument",))
    assert (info.config.user, info.config.cwd, info.config.labels) == ("www-data", "/opt/app", {"purpose": "a test"})
    listing = said(client, "test/app:1", "pwd; cat link same /tmp/who; ls -A; stat -c '%u %g %a %h' program.sh same")
    assert listing.split("\n") == [
        *("/opt/app", "hello from /src", "hello from /src", "www-data"),
        *("a.o", "b.o", "greeting", "link", "one", "program.sh", "same"),
        *("33 123 4755 1", "33 123 644 2", ""),
    ]
    assert said(client, "test/app:1", "cd /objects; stat -c '%N %u' *").split("\n") == [
        *("'a.o' 0", "'b.o' 0", "'link' 0", ""),  # a link is copied as what it points to
    ]
    told = [entry.made_by for entry in client.image_history("test/app:1").entries]
    assert [how.split()[0] for how in told if not how.startswith("build from")] == ["COPY", "COPY", "RUN"]
    (context / "data" / "two").write_text("is ignored")
    os.utime(context / "data" / "one", (1, 1))
    assert counts(build(dsec, image, context, "test/app:2")) == (STEPS, 0)
    assert client.image("test/app:2").layers == info.layers
    # from the first step that sees it on, everything is run again
    (context / "data" / "one").write_text("changed")
    assert counts(build(dsec, image, context, "test/app:4")) == (0, STEPS)
    assert said(client, "test/app:4", "cat one") == "changed"
    options = ("--target", "build", "--build-arg", "GREETING=hi")
    assert counts(build(dsec, image, context, "test/app:5", *options)) == (1, 2)
    assert counts(build(dsec, image, context, "test/app:6", *options, "--no-cache")) == (0, 3)


@pytest.mark.usefixtures("built")
def test_a_step_that_fails_ends_it_and_leaves_what_came_before(
    dsec: Dsec, client: DSecClient, image: str, context: Path
) -> None:
    (context / "Dockerfile").write_text(
        "ARG BASE\nFROM $BASE\nRUN touch /first\n\nRUN echo out; echo err >&2; exit 37\nRUN touch /never\n"
    )
    done = build(dsec, image, context, "test/fails:1")
    assert done.returncode == 37
    assert "cannot build line 5 of the Dockerfile" in done.stderr
    assert {"out", "err"} <= set(done.stderr.split("\n"))
    assert "never" not in done.stderr
    assert "test/fails:1" not in [info.ref for info in client.images()]
    assert client.list() == ()
    (context / "Dockerfile").write_text("ARG BASE\nFROM $BASE\nRUN touch /first\nRUN test -e /first\n")
    assert counts(build(dsec, image, context, "test/fails:1")) == (1, 1)


@pytest.mark.usefixtures("built")
def test_what_is_wrong_is_refused_before_anything_is_run(
    dsec: Dsec, client: DSecClient, image: str, context: Path
) -> None:
    before = {info.ref for info in client.images()}
    for text, why in {
        "FROM $BASE\nRUN true\nVOLUME /x": "line 4",
        "FROM none/such:1\nRUN true": "none/such:1",
        "FROM $BASE\nCOPY missing /": "(line 3 of the Dockerfile)",
        "FROM $BASE\nCOPY data/two /": "dockerignore",
    }.items():
        (context / "Dockerfile").write_text(f"ARG BASE\n{text}")
        done = build(dsec, image, context, "test/wrong:1", "--progress", "quiet")
        assert done.returncode not in (0, 1)
        assert why in done.stderr
    assert {info.ref for info in client.images()} == before
    (context / "Dockerfile").write_text("ARG BASE\nFROM $BASE")
    assert "taken" in build(dsec, image, context, image).stderr
    assert build(dsec, image, context, "test/wrong:1", "--kind", "toolkit").returncode == 2


@pytest.mark.usefixtures("built")
def test_from_nothing(dsec: Dsec, client: DSecClient, image: str, context: Path) -> None:
    (context / "Dockerfile").write_text("ARG BASE\nFROM scratch\nCOPY --chown=5:6 data /data\nWORKDIR /w\nUSER 5:6\n")
    assert counts(build(dsec, image, context, "test/scratch:1")) == (0, 2)
    with client.run_container(DSecContainerRunArgs(container_image="test/scratch:1")) as sandbox:
        assert sandbox.files.read("/data/one") == b"1"
        assert [(entry.path, entry.uid, entry.gid) for entry in sandbox.files.list("/data")] == [("one", 5, 6)]
        found = sandbox.files.stat("/data"), sandbox.files.stat("/w")
        assert [(each.uid, each.gid) for each in found] == [(5, 6), (0, 0)]


class _Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello of the host")

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server on the host's loopback."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hello) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.usefixtures("built")
def test_the_hosts_network_only_when_asked_for(
    dsec: Dsec, client: DSecClient, image: str, context: Path, port: int
) -> None:
    fetch = (
        f"import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:{port}', timeout=5).read().decode())"
    )
    (context / "Dockerfile").write_text(f'ARG BASE\nFROM $BASE\nRUN python3 -c "{fetch}" > /got\n')
    done = build(dsec, image, context, "test/net:1")
    assert done.returncode == 1
    assert "refused" in done.stderr
    assert counts(build(dsec, image, context, "test/net:1", "--network", "host")) == (0, 1)
    assert said(client, "test/net:1", "cat /got") == "hello of the host\n"


def test_a_sandbox_in_the_hosts_network(client: DSecClient, image: str) -> None:
    with client.run_container(DSecContainerRunArgs(container_image=image, network="host")) as sandbox:
        assert sandbox.info().spec.network == "host"
        for name in ("resolv.conf", "hosts"):
            assert sandbox.files.read(f"/etc/{name}") == Path("/etc", name).read_bytes()
            assert sandbox.run_shell(f"echo x >> /etc/{name}").exit_code != 0
            assert sandbox.run_shell(f"umount /etc/{name}").exit_code != 0
        inside = sandbox.run_shell("ls /sys/class/net; readlink /proc/self/ns/net").check().stdout.split()
        assert inside[-1] == os.readlink("/proc/self/ns/net")
        assert sandbox.run_shell("ip link set lo down; echo 1 > /proc/sys/net/ipv4/ip_forward").exit_code != 0
        assert sandbox.run_shell("unshare -n true").exit_code != 0
    with client.run_container(DSecContainerRunArgs(container_image=image)) as sandbox:
        own = sandbox.run_shell("readlink /proc/self/ns/net").check().stdout.strip()
        assert own != os.readlink("/proc/self/ns/net")
    with pytest.raises(InvalidArgumentError):
        DSecContainerRunArgs(container_image=image, network="bridge").to_spec()  # type: ignore[arg-type]


@pytest.mark.usefixtures("built")
@pytest.mark.needs("docker-registry")
def test_from_an_image_of_a_registry(
    dsec: Dsec,
    client: DSecClient,
    image: str,
    context: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DSEC_REGISTRY_AUTH", f"{USER}:{PASSWORD}")
    above = context / "above"
    above.write_text("FROM scratch\nCOPY data /data\nENV A=b\nWORKDIR /data\n")
    assert dsec("image", "build", "test/tiny:1", str(context), "-f", str(above)).returncode == 0
    with real_registry(tmp_path_factory.mktemp("registry")) as registry:
        name = f"{registry.host}/team/tiny:1"
        pushed = dsec("image", "push", "test/tiny:1", f"docker://{name}", "--plain-http")
        assert pushed.returncode == 0, pushed.stderr
        (context / "Dockerfile").write_text(f"FROM {name}\nCOPY program.sh $A\n")
        # the variable goes to no registry that a file names
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path_factory.mktemp("docker")))
        refused = dsec("image", "build", "test/on:1", str(context))
        assert (refused.returncode, "line 1 of the Dockerfile" in refused.stderr) == (77, True)
        login = {"auths": {registry.host: {"username": USER, "password": PASSWORD}}}
        Path(os.environ["DOCKER_CONFIG"], "config.json").write_text(json.dumps(login))
        assert counts(dsec("image", "build", "test/on:1", str(context))) == (0, 1)
    info = client.image("test/on:1")
    assert (info.config.env, info.config.cwd) == ({"A": "b"}, "/data")
    assert registry.host.replace(":", "-") + "/team/tiny:1" in [each.ref for each in client.images()]
    # what was pulled is an image of the node: the registry is not asked again
    assert counts(dsec("image", "build", "test/on:2", str(context))) == (1, 0)
    with client.run_container(DSecContainerRunArgs(container_image="test/on:2")) as sandbox:
        assert [entry.path for entry in sandbox.files.list("/data")] == ["b", "one"]


@pytest.mark.usefixtures("built")
def test_builds_at_once_from_nothing(url: str, client: DSecClient, context: Path) -> None:
    """The first of them makes what all begin with, and the others have that."""
    for number in range(3):
        for ref in [info.ref for info in client.images() if info.ref.startswith("build-cache/")]:
            client.remove_image(ref)
        refs = [f"test/at-once-{number}-{each}:1" for each in range(5)]
        made = asyncio.run(_built_at_once(url, "FROM scratch\nCOPY data /data\n", context, refs))
        assert len({info.layers for info in made}) == 1
        for ref in refs:
            client.remove_image(ref)


@pytest.mark.usefixtures("built")
@pytest.mark.needs("docker-registry")
def test_builds_at_once_from_an_image_of_a_registry(
    dsec: Dsec,
    url: str,
    client: DSecClient,
    context: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DSEC_REGISTRY_AUTH", f"{USER}:{PASSWORD}")
    (context / "Dockerfile").write_text("FROM scratch\nCOPY data /data\n")
    assert dsec("image", "build", "test/tiny:1", str(context)).returncode == 0
    with real_registry(tmp_path_factory.mktemp("registry")) as registry:
        name = f"{registry.host}/team/tiny:1"
        assert dsec("image", "push", "test/tiny:1", f"docker://{name}", "--plain-http").returncode == 0
        refs = [f"test/pulled-at-once-{each}:1" for each in range(5)]
        made = asyncio.run(_built_at_once(url, f"FROM {name}\nCOPY program.sh /\n", context, refs))
        assert len({info.layers for info in made}) == 1


async def _built_at_once(url: str, text: str, context: Path, refs: Sequence[str]) -> Sequence[ImageInfo]:
    options = run.Options(login_for=lambda _: RegistryLogin(USER, PASSWORD))
    async with libdsec.DSecClient(url) as client:
        builds = (run.build(client, ref, text, str(context), options, lambda _: None) for ref in refs)
        return await asyncio.gather(*builds)


@pytest.mark.usefixtures("built")
def test_links_of_another_stage_lead_where_they_lead_there(
    dsec: Dsec, client: DSecClient, image: str, context: Path
) -> None:
    (context / "Dockerfile").write_text(
        "ARG BASE\nFROM $BASE AS other\n"
        "RUN mkdir -p /b/c && ln -s ../y /b/c/x && ln -s /b/c /a && echo right > /b/y && echo wrong > /y\n"
        "FROM scratch\nCOPY --from=other /a/x /x\n"
    )
    assert counts(build(dsec, image, context, "test/links:1")) == (0, 2)
    with client.run_container(DSecContainerRunArgs(container_image="test/links:1")) as sandbox:
        assert sandbox.files.read("/x") == b"right\n"


@pytest.mark.usefixtures("built")
def test_a_command_that_cannot_be_started_names_its_line(dsec: Dsec, client: DSecClient, context: Path) -> None:
    (context / "Dockerfile").write_text("FROM scratch\n\nRUN true\n")
    done = dsec("image", "build", "test/none:1", str(context))
    assert (done.returncode, "line 3 of the Dockerfile" in done.stderr) == (127, True)


@pytest.mark.usefixtures("built")
def test_an_interrupted_build_leaves_nothing(url: str, image: str, client: DSecClient, context: Path) -> None:
    (context / "Dockerfile").write_text("ARG BASE\nFROM $BASE\nRUN echo begun; sleep 1000\n")
    command = [sys.executable, "-m", "dsec", "image", "build", "test/never:1", str(context)]
    with subprocess.Popen(
        [*command, "--build-arg", f"BASE={image}"], env={**os.environ, "DSEC_URL": url}, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stderr is not None
            while process.stderr.readline() != b"begun\n":
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            process.kill()
    assert client.list() == ()
