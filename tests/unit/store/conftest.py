"""Building layers into a temporary directory, with the checks that every built layer must pass; a store of a test's
own."""

from __future__ import annotations

import contextlib
import itertools
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
