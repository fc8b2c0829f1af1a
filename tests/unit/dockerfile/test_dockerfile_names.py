"""What a build may call its image."""

from __future__ import annotations

import pytest

from dsec.dockerfile.run import Options, build
from libdsec import DSecClient
from libdsec.protocol.errors import InvalidArgumentError


@pytest.mark.parametrize("ref", ["build-cache/a:1", "build-cache/scratch:1", "build-cache:1"])
async def test_names_of_the_cache_are_refused_before_anything_is_asked(ref: str) -> None:
    with pytest.raises(InvalidArgumentError, match="are the cache's"):
        await build(DSecClient("unix:/nowhere"), ref, "FROM scratch", "/nowhere", Options(), print)
