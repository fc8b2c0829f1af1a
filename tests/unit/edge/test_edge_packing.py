"""What a sandbox changed is gathered, or it is said why not."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest

from dsec.drivers.base import Captured
from dsec.edge.packing import Uppers, changes_in
from dsec.store.local import LocalStore
from libdsec.protocol.errors import CapacityError
from libdsec.protocol.images import ChangeCount


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    with contextlib.closing(LocalStore(str(tmp_path / "state"))) as store:
        yield store


class Written:
    """An upper, and whether its sandbox stands still for it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "new").write_text("new")
        self._directory = directory
        self.stands = False

    @asynccontextmanager
    async def capture(self) -> AsyncIterator[Captured]:
        self.stands = True
        try:
            yield Captured(str(self._directory), 0.0, lambda: None)
        finally:
            self.stands = False


async def test_the_sandbox_goes_on_before_what_changed_is_told(store: LocalStore, tmp_path: Path) -> None:
    upper = Written(tmp_path / "upper")
    async with changes_in(store, Uppers(), (), 0, upper.capture) as (count, batches):
        assert not upper.stands
        assert count == ChangeCount(2, 0, 0)
        paths = [change["path"] for batch in batches for change in msgspec.msgpack.decode(batch)]
        assert paths == ["/", "/new"]


async def test_a_full_disk_is_told_and_the_sandbox_goes_on(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: Any) -> IO[bytes]:
        return open("/dev/full", "w+b", buffering=0)

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    upper = Written(tmp_path / "upper")
    with pytest.raises(CapacityError, match="no room"):
        async with changes_in(store, Uppers(), (), 0, upper.capture):
            pass
    assert not upper.stands
