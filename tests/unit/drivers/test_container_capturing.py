"""A snapshot of what a sandbox has written: made while it stands still, there while it is read, and gone whatever
happens."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dsec.drivers.container.capturing import captured
from dsec.linux import KernelError
from libdsec.protocol.errors import CapacityError


class Upper:
    """One whose file system has snapshots, and its sandbox."""

    has_snapshots, home, path_upper = True, "/uppers/one", "/uppers/one/fs/upper"

    def __init__(self) -> None:
        self.may = threading.Event()
        self.may.set()
        self.begun = threading.Event()
        self.there = self.standing = False
        self.failure: KernelError | None = None
        self.loop_thread = threading.get_ident()

    def snapshot(self) -> str:
        assert threading.get_ident() != self.loop_thread
        assert self.standing, "what is written meanwhile would be there in part"
        self.begun.set()
        self.may.wait(10)
        if self.failure is not None:
            raise self.failure
        self.there = True
        return "/uppers/one/snapshot/upper"

    def remove_snapshot(self) -> None:
        assert threading.get_ident() != self.loop_thread
        self.there = False

    @contextlib.asynccontextmanager
    async def still(self) -> AsyncIterator[float]:
        self.standing = True
        try:
            yield time.monotonic()
        finally:
            self.standing = False


def capture(upper: Upper) -> Any:
    return captured(upper, upper, lambda: None)  # type: ignore[arg-type]


async def test_it_is_there_while_it_is_read() -> None:
    upper = Upper()
    async with capture(upper) as what:
        assert (what.path, what.since, upper.there) == ("/uppers/one/snapshot/upper", None, True)
        assert not upper.standing
    assert not upper.there


async def test_one_that_is_given_up_while_it_is_made_is_gone() -> None:
    upper = Upper()
    upper.may.clear()

    async def read() -> None:
        async with capture(upper):
            raise AssertionError("it was given up")

    reading = asyncio.get_running_loop().create_task(read())
    await asyncio.to_thread(upper.begun.wait, 10)
    reading.cancel()
    await asyncio.sleep(0)
    upper.may.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not upper.there
    assert not upper.standing


async def test_no_room_for_one_is_said() -> None:
    upper = Upper()
    upper.failure = KernelError(errno.ENOSPC, "snapshot subvolume", "/uppers/one/fs")
    with pytest.raises(CapacityError, match="snapshot"):
        async with capture(upper):
            raise AssertionError("there is none")
