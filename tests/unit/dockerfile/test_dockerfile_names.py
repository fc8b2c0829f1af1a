"""What is refused before anything is asked of a server: names of images, a .dockerignore that is none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.dockerfile.run import Options, build
from libdsec import DSecClient
from libdsec.protocol.errors import InvalidArgumentError


@pytest.mark.parametrize("ref", ["build-cache/a:1", "build-cache/scratch:1", "build-cache:1"])
async def test_names_of_the_cache_are_refused_before_anything_is_asked(ref: str) -> None:
    with pytest.raises(InvalidArgumentError, match="are the cache's"):
        await build(DSecClient("unix:/nowhere"), ref, "FROM scratch", "/nowhere", Options(), print)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda path: os.mkfifo(path), "it is no file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is no file"),
        (lambda path: path.mkdir(), "it is no file"),
        (lambda path: path.symlink_to(path), "cannot read"),
        (lambda path: path.write_bytes(b"x" * (1024 * 1024 + 1)), "more than 1048576 bytes"),
    ],
    ids=["fifo", "endless", "directory", "loop", "large"],
)
async def test_a_dockerignore_that_cannot_be_read(tmp_path: Path, made: Callable[[Path], object], why: str) -> None:
    made(tmp_path / ".dockerignore")
    with pytest.raises(InvalidArgumentError, match=why):
        await build(DSecClient("unix:/nowhere"), "a:1", "FROM scratch", str(tmp_path), Options(), print)
