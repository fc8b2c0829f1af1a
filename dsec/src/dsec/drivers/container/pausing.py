"""Pausing a sandbox's control group and resuming it: freeze, then reclaim; prefetch, then thaw.

Freezing and thawing are short writes, done on the event loop, so that no cancel can come between asking for one and
having it. Reclaiming and prefetching are long and run in threads; a thread that is canceled is told to stop and comes
to nothing, since both are only advice: they are as right for a group that runs.
"""

from __future__ import annotations

import asyncio
import threading
import time

import structlog

from dsec.linux import KernelError
from dsec.linux.cgroups import FREEZE_POLL_S, Cgroup
from dsec.linux.cgroups.freezer import is_in_a_read
from dsec.linux.reclaim import Reclaimed, prefetch, reclaim
from libdsec.protocol.errors import DeadlineExceededError, InternalError

PREFETCH_S = 0.002
"""What may be spent on prefetching before the thaw: enough for the small mappings that every process needs. More makes
the first answer later, not earlier. Measured with 100 MB that do not compress, to the first answer: from a swap file
25 ms with nothing prefetched, 15 with this, 123 with everything (its own reads queue behind those that it does not
need); from zram 6, 9 and 104 (all is unpacked first)."""
_PREFETCH_WAIT_S = 0.02
"""For a thread to do it in: where all are busy it is not worth waiting for."""

LOOK_S = 0.05
"""After so long without being stopped it is looked whether reads are in the way."""
MOST_INLINE = 32
"""Threads that are looked at on the event loop, some 10 µs each."""
REST_S, MOST_REST_S = 0.01, 0.5
"""For reads to come to their end in: at first, and when they do not."""

_log = structlog.get_logger("dsec.container")


async def freeze_and_reclaim(cgroup: Cgroup, *, deadline_s: float, turns: asyncio.Semaphore | None = None) -> Reclaimed:
    """Stop everything in the group, then give its memory back as far as that can be had in time. On failure, and when
    canceled, everything runs again.

    `turns` bounds how many reclaim at once; those that wait are frozen already. One whose turn does not come in time
    stays frozen and keeps its memory, as the answer says.

    :raises DeadlineExceededError: a process could not be stopped in time; details name the stage.
    :raises UnsupportedOperationError: this host has no freezer.
    :raises InternalError: the kernel refused; details name the stage.
    """
    end = time.monotonic() + deadline_s
    try:
        await freeze(cgroup, deadline_s=deadline_s)
        return await _reclaim(cgroup, end, turns)
    except BaseException as error:
        _thaw(cgroup)
        if isinstance(error, KernelError):
            raise InternalError(f"cannot pause {cgroup.name}: {error}", stage="reclaim") from error
        raise


async def prefetch_and_thaw(cgroup: Cgroup, *, deadline_s: float) -> None:
    """Have what is needed first read again, for a moment only, then let everything run. When canceled it runs as well.
    Legal when it is not frozen.

    :raises InternalError: the kernel did not let it go on; details name the stage.
    """
    try:
        async with asyncio.timeout(min(deadline_s, _PREFETCH_WAIT_S)):
            await asyncio.to_thread(prefetch, cgroup, min(PREFETCH_S, deadline_s))
    except OSError as error:
        # only slower: everything is read when it is needed
        _log.info("not prefetched", cgroup=cgroup.name, error=str(error) or "no time")
    finally:
        _thaw(cgroup)


async def freeze(cgroup: Cgroup, *, deadline_s: float) -> None:
    """Stop everything in the group, and nothing of it in the middle of a read for which data has to come: that would
    keep the pages from every other sandbox of the layer. So what reads is let go on, and asked again. What was stopped
    so far stays so on failure: thaw it then.

    :raises DeadlineExceededError, UnsupportedOperationError, InternalError: as `freeze_and_reclaim`.
    """
    end = time.monotonic() + deadline_s
    rest_s = REST_S
    try:
        while True:
            stopped = await _all_stopped(cgroup, min(end, time.monotonic() + LOOK_S))
            in_a_read = await _in_a_read(cgroup)
            if stopped and not in_a_read:
                return
            if time.monotonic() > end:
                raise DeadlineExceededError(
                    f"cannot pause {cgroup.name}: a process of it could not be stopped in {deadline_s:g} s; it may "
                    "wait for a disk, or for data of a shared store that does not answer",
                    stage="freeze",
                    timeout_s=deadline_s,
                )
            if in_a_read:
                cgroup.thaw()
                await asyncio.sleep(rest_s)
                rest_s = min(2 * rest_s, MOST_REST_S)
    except KernelError as error:
        raise InternalError(f"cannot pause {cgroup.name}: {error}", stage="freeze") from error


async def _in_a_read(cgroup: Cgroup) -> bool:
    threads = cgroup.freezable_in_a_read()
    if len(threads) <= MOST_INLINE:
        return any(map(is_in_a_read, threads))
    return await asyncio.to_thread(lambda: any(map(is_in_a_read, threads)))


async def _all_stopped(cgroup: Cgroup, until: float) -> bool:
    while not cgroup.try_freeze():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(FREEZE_POLL_S)
    return True


async def _reclaim(cgroup: Cgroup, end: float, turns: asyncio.Semaphore | None) -> Reclaimed:
    stop = threading.Event()
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + end - time.monotonic()):
            if turns is not None:
                await turns.acquire()
    except TimeoutError:
        return Reclaimed()
    try:
        return await asyncio.to_thread(reclaim, cgroup, max(0.0, end - time.monotonic()), stop)
    finally:
        stop.set()
        if turns is not None:
            turns.release()


def _thaw(cgroup: Cgroup) -> None:
    try:
        cgroup.thaw()
    except KernelError as error:
        raise InternalError(f"cannot let {cgroup.name} go on: {error}", stage="thaw") from error
