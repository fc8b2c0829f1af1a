"""A real node for the SDK's tests, and sandboxes on it that are gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from libdsec.sync import DSecClient, DSecContainerRunArgs, Sandbox

Create = Callable[..., Sandbox]


@pytest.fixture(scope="session")
def node(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The URL of a node and an image on it: of this run's own, or of the one that DSEC_TEST_URL names."""
    given = os.environ.get("DSEC_TEST_URL")
    if given is not None:
        with DSecClient(given) as client:
            return given, client.images()[0].ref
    environment: dict[str, str] = request.getfixturevalue("node_environment")
    return f"unix://{environment['DSEC_RUN_DIR']}/api.sock", environment["DSEC_IMAGE"]


@pytest.fixture(scope="session")
def url(node: tuple[str, str]) -> str:
    return node[0]


@pytest.fixture(scope="session")
def image(node: tuple[str, str]) -> str:
    return node[1]


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[DSecClient]:
    with DSecClient(url) as client:
        yield client


@pytest.fixture
def create(client: DSecClient, image: str) -> Iterator[Create]:
    """Makes sandboxes of the host's image with the options given."""
    made: list[Sandbox] = []

    def create(**options: object) -> Sandbox:
        made.append(client.run_container(DSecContainerRunArgs(**{"container_image": image, **options})))
        return made[-1]

    yield create
    for sandbox in made:
        sandbox.stop()


@pytest.fixture(scope="module")
def sandbox(client: DSecClient, image: str) -> Iterator[Sandbox]:
    """One for all tests of a file that leave it as it was."""
    with client.run_container(DSecContainerRunArgs(container_image=image, memory_limit_mb=512)) as sandbox:
        yield sandbox


@pytest.fixture
def dsec(url: str, image: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, as a process."""

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "DSEC_URL": url, "DSEC_IMAGE": image}
        command = [sys.executable, "-m", "dsec", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, **options)

    return run
