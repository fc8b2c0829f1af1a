"""Mounting layers for a test, and taking every mount away again."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dsec.store.build import LayerBuild, build_layer
from dsec.store.sources import MemorySource, Source, SourceItem

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "unit" / "store"))

from layer_trees import check_files, check_fsck

_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_RDONLY = 1
_MNT_DETACH = 2


@contextmanager
def mounted(build: LayerBuild, directory: Path) -> Iterator[Path]:
    """The layer's root, mounted from its files."""
    at = directory / f"mount-{Path(build.metadata_path).stem}"
    at.mkdir(exist_ok=True)
    options = f"device={build.data_path}".encode()
    if _LIBC.mount(os.fsencode(build.metadata_path), os.fsencode(at), b"erofs", _MS_RDONLY, options):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(at))
    try:
        yield at
    finally:
        if _LIBC.umount2(os.fsencode(at), 0):
            _LIBC.umount2(os.fsencode(at), _MNT_DETACH)
            raise OSError(ctypes.get_errno(), f"{at} was still in use")
        at.rmdir()


Mounted = Callable[..., Any]


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
def no_mount_is_left() -> Iterator[None]:
    before = Path("/proc/self/mounts").read_text().count(" erofs ")
    yield
    assert Path("/proc/self/mounts").read_text().count(" erofs ") == before
