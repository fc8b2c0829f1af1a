"""Building layers into a temporary directory, with the checks that every built layer must pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from layer_trees import Build, check_files, check_fsck

from dsec.store.build import LayerBuild, build_layer
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
