"""Reading what a sandbox has written, as it was at one moment.

An upper in a btrfs subvolume is snapshotted, and the sandbox goes on when that is done; of any other it stands still
while it is read. It stands still for the snapshot too: one of a tree that is written to has the names of files whose
contents were not on their way to the disk when it began, and those empty. Should we die meanwhile, the next edge thaws
the sandbox as it adopts it, and takes the snapshot away as it opens the upper.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog

from dsec import faults
from dsec.drivers.base import Captured
from dsec.linux import KernelError
from dsec.linux.uppers import Upper
from libdsec.protocol.errors import CapacityError

from .standstill import Standstill

_log = structlog.get_logger("dsec.container")


@asynccontextmanager
async def captured(upper: Upper, standstill: Standstill, check: Callable[[], None]) -> AsyncIterator[Captured]:
    """See `Instance.capture`."""
    if not upper.has_snapshots:
        async with standstill.still() as since:
            yield Captured(upper.path_upper, since, check)
        return
    made = False
    try:
        async with standstill.still() as since:
            copy = await _snapshot(upper)
            made = True
        stood_ms = round((time.monotonic() - since) * 1000, 3)
        faults.point("driver.snapshot.made")
        yield Captured(copy, None, check, stood_ms)
    finally:
        if made:
            await _gone(upper)


async def _snapshot(upper: Upper) -> str:
    making = asyncio.get_running_loop().run_in_executor(None, upper.snapshot)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        # the thread cannot be stopped, and what it makes must be gone before the upper may go
        with contextlib.suppress(KernelError):
            await making
        await _gone(upper)
        raise
    except KernelError as error:
        raise CapacityError(f"cannot snapshot what a sandbox has written: {error}", errno=error.errno or 0) from error


async def _gone(upper: Upper) -> None:
    await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, _remove, upper))


def _remove(upper: Upper) -> None:
    try:
        upper.remove_snapshot()
    except KernelError as error:
        # the next snapshot, or the end of the sandbox, takes it away
        _log.warning("snapshot not removed", upper=upper.home, error=str(error))
