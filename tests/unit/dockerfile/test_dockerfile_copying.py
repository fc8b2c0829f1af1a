"""COPY out of another sandbox, which goes whatever comes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dsec.dockerfile.copying import from_sandbox
from dsec.dockerfile.plan import CopyStep
from libdsec.protocol.errors import InvalidArgumentError, PathNotFoundError


class Files:
    """Of a sandbox with nothing in it."""

    async def read(self, path: str, *, limit: int) -> bytes:
        raise PathNotFoundError(f"cannot read {path}: there is none", path=path)


class Other:
    """The sandbox of another stage, which runs until it is left."""

    def __init__(self) -> None:
        self.runs = True

    async def __aenter__(self) -> Any:
        return SimpleNamespace(files=Files())

    async def __aexit__(self, *_: object) -> None:
        self.runs = False


async def test_an_owner_that_is_nobody_leaves_no_sandbox() -> None:
    step = CopyStep(3, "COPY", (), ("/a",), "/b", 0, None, "nobody-here")
    other, sandbox = Other(), SimpleNamespace(files=Files())
    with pytest.raises(InvalidArgumentError, match=r"line 3 .*nobody-here"):
        await from_sandbox(sandbox, step, other)  # type: ignore[arg-type]
    assert not other.runs
