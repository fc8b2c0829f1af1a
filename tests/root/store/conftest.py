"""Building and mounting a layer for a test, and that no mount is left behind."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dsec.store.build import LayerBuild, build_layer
from dsec.store.sources import MemorySource, Source, SourceItem

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "unit" / "store"))

from layer_trees import check_files, check_fsck
from mounting import Mounted, mounted


@pytest.fixture
def mount(tmp_path: Path) -> Mounted:
    """`with mount(source or items) as (build, root)`: a layer, checked and mounted."""
    numbers = itertools.count()

    @contextmanager
    def make(
        source: Source | Iterable[SourceItem], *, fsck: bool = True, **options: Any
    ) -> Iterator[tuple[LayerBuild, Path]]:
        if not hasattr(source, "entries"):
            source = MemorySource(source)
        built = build_layer(source, tmp_path, f"layer{next(numbers)}", **options)
        check_files(built)
        if fsck:
            check_fsck(built)
        with mounted(built, tmp_path) as root:
            yield built, root
        os.unlink(built.metadata_path)
        os.unlink(built.data_path)

    return make


@pytest.fixture(autouse=True)
def no_mount_is_left(tmp_path: Path) -> Iterator[None]:
    """Of this test's own: others come and go with whatever else runs on the machine."""
    yield
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
