"""A real node, and hostile code in its sandboxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from inside import Create

from libdsec.sync import DSecClient, DSecContainerRunArgs, Sandbox


@pytest.fixture(scope="session")
def client(node_environment: dict[str, str]) -> Iterator[DSecClient]:
    with DSecClient(f"unix://{node_environment['DSEC_RUN_DIR']}/api.sock") as client:
        yield client


@pytest.fixture
def create(client: DSecClient, node_environment: dict[str, str]) -> Iterator[Create]:
    """Makes sandboxes of the host's image with the options given."""
    made: list[Sandbox] = []

    def create(**options: object) -> Sandbox:
        arguments: dict[str, Any] = {
            "container_image": node_environment["DSEC_IMAGE"],
            "memory_limit_mb": 256,
            **options,
        }
        made.append(client.run_container(DSecContainerRunArgs(**arguments)))
        return made[-1]

    yield create
    for sandbox in made:
        sandbox.stop()


@pytest.fixture
def sandbox(create: Create) -> Sandbox:
    return create()
