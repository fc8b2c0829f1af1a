"""Pause and resume of one sandbox, and standing still for a moment (`still`), one at a time, whoever asks.

Each runs as a task of the driver's own, so that it is finished whatever becomes of who asked for it; those who ask
meanwhile wait for their turn. Init's timers are held before the freezing and released after the thawing. The end of
the sandbox (`give_way`) cancels what is under way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

from dsec import faults
from dsec.linux import KernelError
from dsec.linux.cgroups import Cgroup
from libdsec.protocol.errors import DeadlineExceededError, DSecError, InternalError, UnsupportedOperationError

from .channel import Channel, ended_error
from .own_calls import Reply
from .pausing import freeze, freeze_and_reclaim, prefetch_and_thaw

TIMERS_TIMEOUT_S = 5.0
PAUSE_TIMEOUT_S = 60.0
STILL_TIMEOUT_S = 10.0
"""For everything inside to be stopped, where it is for a moment only."""

THAW_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 10.0
"""From the thaw on, within which init has to answer."""

GIVE_WAY_TIMEOUT_S = 5.0

_log = structlog.get_logger("dsec.container")


class Standstill:
    def __init__(
        self,
        sandbox: str,
        channel: Channel,
        cgroup: Cgroup,
        *,
        turns: asyncio.Semaphore,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        lost: Callable[[str], None],
        meet: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`turns` bounds how many sandboxes give memory back at once. `lost` is told when the sandbox can neither stand
        nor run. With `meet` it was adopted while it stood still: this makes init's acquaintance, at the first resume.
        """
        self._sandbox, self._channel, self._cgroup = sandbox, channel, cgroup
        self._spawn, self._lost, self._meet = spawn, lost, meet
        self._turns = turns
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False
        self._still = False
        """Frozen for a moment, or not thawed after one."""
        self.paused = meet is not None

    async def pause(self) -> None:
        """See `Instance.pause`."""
        await self._ask(self._pause)

    async def resume(self) -> None:
        """See `Instance.resume`."""
        await self._ask(self._resume)

    @asynccontextmanager
    async def still(self) -> AsyncIterator[float]:
        """Nothing of it runs inside; behind it all does again, unless it was paused before. Gives the time
        (`time.monotonic`) since when it stands. Should the sandbox be ended meanwhile, it does not wait for this.

        :raises DSecError: it could not be made to stand; everything runs.
        """
        standing: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        enough = asyncio.Event()
        done = self._begin(lambda: self._stand(standing, enough))
        try:
            await asyncio.wait((standing, done), return_when=asyncio.FIRST_COMPLETED)
            if not standing.done():
                await done
            yield standing.result()
        finally:
            enough.set()
            await asyncio.wait((done,))

    async def release_timers(self) -> None:
        """As they may have been left held by an edge that died in a pause or resume.

        :raises DSecError: init does not answer.
        """
        try:
            await self._call("release_timers", ANSWER_TIMEOUT_S)
        except UnsupportedOperationError:
            pass  # an init that cannot hold them has none held

    @property
    def busy(self) -> bool:
        """Whether something of it is frozen or may be."""
        return self.paused or self._still or bool(self._tasks)

    def leave(self) -> None:
        """What is under way is given up; the next edge makes good what it finds."""
        self._over = True
        for task in self._tasks:
            task.cancel()

    async def give_way(self) -> None:
        """The sandbox is being killed: nothing of it stays frozen, and nothing is begun any more."""
        busy = self.busy
        self.leave()
        if not busy:
            return
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GIVE_WAY_TIMEOUT_S)
        try:
            self._cgroup.thaw()
        except KernelError as error:
            _log.warning("sandbox not thawed for its end", sandbox=self._sandbox, error=str(error))

    async def _ask(self, work: Callable[[], Awaitable[None]]) -> None:
        await asyncio.shield(self._begin(work))

    def _begin(self, work: Callable[[], Awaitable[None]]) -> asyncio.Future[None]:
        """A future of how it ends: it does so whatever becomes of who waits for that."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = self._spawn(self._in_turn(work, done))
        self._tasks.add(task)

        def finished(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not done.done():
                done.set_exception(self._ended())
            done.exception()  # seen here: whoever asked may have gone

        task.add_done_callback(finished)
        return done

    async def _in_turn(self, work: Callable[[], Awaitable[None]], done: asyncio.Future[None]) -> None:
        try:
            async with self._turn:
                if self._over:
                    raise self._ended()
                await work()
        except DSecError as error:
            done.set_exception(error)
        except Exception as error:
            # of whatever kind: who asked is told, and the task group of everybody goes on
            _log.error("pause or resume failed", sandbox=self._sandbox, exc_info=error)
            done.set_exception(InternalError(f"cannot pause or resume sandbox {self._sandbox}: {error}"))
        else:
            done.set_result(None)

    async def _pause(self) -> None:
        if self.paused:
            return
        self.paused = True
        try:
            await self._call("hold_timers", TIMERS_TIMEOUT_S)
            faults.point("driver.pause.held")
            await freeze_and_reclaim(self._cgroup, deadline_s=PAUSE_TIMEOUT_S, turns=self._turns)
            faults.point("driver.pause.reclaimed")
        except BaseException:
            await self._run_again()
            raise

    async def _stand(self, standing: asyncio.Future[float], enough: asyncio.Event) -> None:
        if self.paused:
            standing.set_result(time.monotonic())
            await enough.wait()
            return
        try:
            await self._call("hold_timers", TIMERS_TIMEOUT_S)
            since = time.monotonic()
            self._still = True
            await freeze(self._cgroup, deadline_s=STILL_TIMEOUT_S)
            faults.point("driver.still.frozen")
            standing.set_result(since)
            await enough.wait()
        finally:
            await self._run_again()

    async def _run_again(self) -> None:
        """After a pause that failed, or a moment of standing still."""
        if self._over:
            return
        try:
            self._cgroup.thaw()
            await self.release_timers()
        except (DSecError, KernelError) as error:
            self._lost(f"a failed pause could not be undone: {error}")
        else:
            self.paused = self._still = False

    async def _resume(self) -> None:
        if not self.paused:
            return
        await prefetch_and_thaw(self._cgroup, deadline_s=THAW_TIMEOUT_S)
        faults.point("driver.resume.thawed")
        try:
            if self._meet is not None:
                await self._meet()
                self._meet = None
            await self.release_timers()
        except DSecError:
            if self._channel.open:
                # what is said to be paused must not run
                await asyncio.to_thread(self._cgroup.freeze, TIMERS_TIMEOUT_S)
            raise
        self.paused = False

    async def _call(self, method: str, timeout_s: float) -> None:
        reply = Reply()
        self._channel.call(method, {}, reply, False)
        try:
            async with asyncio.timeout(timeout_s):
                await reply.wait()
        except TimeoutError:
            raise DeadlineExceededError(
                f"cannot {method} of sandbox {self._sandbox}: PID 1 has not answered in {timeout_s:g} s",
                sandbox=self._sandbox,
                timeout_s=timeout_s,
            ) from None

    def _ended(self) -> DSecError:
        return ended_error(self._sandbox, "it is being ended")
