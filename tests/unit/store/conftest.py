"""Building layers into a temporary directory, with the checks that every built layer must pass; a store of a test's
own."""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from layer_trees import Build, check_files, check_fsck

from dsec.store.build import LayerBuild, build_layer
from dsec.store.local import LocalStore, Taken
from dsec.store.sources import MemorySource, Source, SourceItem


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """`build(source or items, **options)`: a layer under a new name, checked."""
    numbers = itertools.count()

    def make(source: Source | Iterable[SourceItem], *, check: bool = True, **options: Any) -> LayerBuild:
        if not hasattr(source, "entries"):
            source = MemorySource(source)
        built = build_layer(source, tmp_path, f"layer{next(numbers)}", **options)
        if check:
            check_files(built)
            check_fsck(built)
        return built

    return make


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    with contextlib.closing(LocalStore(str(tmp_path / "state"))) as store:
        yield store


@pytest.fixture
def taken(store: LocalStore) -> Iterator[Taken]:
    with store.taking() as taken:
        yield taken


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The host and port of a registry of this test's own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\n"
    )
    with subprocess.Popen(
        ["docker-registry", "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            deadline = time.monotonic() + 20
            while not answers(f"http://127.0.0.1:{port}/v2/"):
                assert process.poll() is None
                assert time.monotonic() < deadline
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False
