"""Every driver, the fake included, is the subject of each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driver_subjects import Make, container_subject, fake_subject


@pytest.fixture(
    params=[
        "fake",
        pytest.param("container", marks=pytest.mark.needs("root", "linux", "erofs", "overlay", "aether")),
    ]
)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    if request.param == "fake":
        yield fake_subject
    else:
        directory: Path = tmp_path_factory.mktemp("d")
        yield lambda: container_subject(directory)
