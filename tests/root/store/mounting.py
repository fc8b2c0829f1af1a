"""Mounting layers and overlays of them for a test."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsec.linux.mounts import attach, mount_erofs
from dsec.store.build import LayerBuild
from dsec.store.records import LayerRecord

Mounted = Callable[..., Any]

_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_RDONLY = 1
_MNT_DETACH = 2


@contextmanager
def _mount(source: str, at: Path, kind: bytes, options: str) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    if _LIBC.mount(os.fsencode(source), os.fsencode(at), kind, _MS_RDONLY, os.fsencode(options)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(at))
    with _taken_away(at):
        yield at


@contextmanager
def _taken_away(at: Path) -> Iterator[None]:
    try:
        yield
    finally:
        if _LIBC.umount2(os.fsencode(at), 0):
            number = ctypes.get_errno()
            _LIBC.umount2(os.fsencode(at), _MNT_DETACH)
            raise OSError(number, os.strerror(number), str(at))
        at.rmdir()


@contextmanager
def mounted(build: LayerBuild, directory: Path) -> Iterator[Path]:
    """The layer's root, mounted from its files, by the means that their file system allows."""
    at = directory / f"mount-{Path(build.metadata_path).stem}"
    at.mkdir(exist_ok=True)
    mount = mount_erofs(build.metadata_path, build.data_path)
    try:
        attach(mount, str(at))
    finally:
        os.close(mount)
    with _taken_away(at):
        yield at


@contextmanager
def layer_mounted(layer: LayerRecord, at: Path) -> Iterator[Path]:
    """The root of a store's layer."""
    at.mkdir()
    mount = mount_erofs(layer.metadata, layer.data)
    try:
        attach(mount, str(at))
    finally:
        os.close(mount)
    with _taken_away(at):
        yield at


@contextmanager
def overlay(lowers: list[Path], at: Path) -> Iterator[Path]:
    """A read-only overlay, the first of `lowers` on top."""
    with _mount("overlay", at, b"overlay", "lowerdir=" + ":".join(map(str, lowers))) as merged:
        yield merged
