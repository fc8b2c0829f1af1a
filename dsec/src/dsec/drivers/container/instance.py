"""One running container sandbox, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
import structlog

from dsec import faults
from dsec.bus import Answerer, Caller
from dsec.drivers.base import Captured, End, OnEnd
from dsec.linux import KernelError
from dsec.linux.processes import pidfd_send_signal
from libdsec.protocol.errors import (
    DeadlineExceededError,
    DSecError,
    InternalError,
    SandboxFailedError,
    UnavailableError,
)

from .capturing import captured
from .channel import Channel, ended_error
from .fork_server import ForkServer, Identity, Living, Made
from .own_calls import Reply
from .standstill import Standstill
from .taken import Taken

EXIT_GRACE_S = 0.3
"""After a channel has ended: how long the fork server gets to say how PID 1 died."""

KILL_TIMEOUT_S = 10.0
MEET_TIMEOUT_S = 5.0
"""Within which an init that was adopted has to name every call that it knows."""

_log = structlog.get_logger("dsec.container")


class Kept(msgspec.Struct, frozen=True):
    """What a later edge needs to find a sandbox and what it has."""

    pid: int
    start_time: int
    cgroup: str
    upper: str
    """Its home."""


class ContainerInstance:
    """Alive from the create's answer, or its adoption, to `destroy`."""

    def __init__(
        self,
        *,
        sandbox: str,
        taken: Taken,
        server: ForkServer,
        reclaiming: asyncio.Semaphore,
        on_end: OnEnd,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        forget: Callable[[str], object],
    ) -> None:
        """`spawn` runs a coroutine under the driver's own task group; `forget` is called when all was given back."""
        self.id = sandbox
        self.pid = 0
        self.start_time = 0
        self.pidfd = -1
        self.channel: Channel | None = None
        self.exit_status: int | None = None
        self._taken = taken
        self._server = server
        self._reclaiming = reclaiming
        self._on_end = on_end
        self._spawn = spawn
        self._forget = forget
        self._exited = asyncio.Event()
        self._ending = False
        self._destroyed: asyncio.Future[None] | None = None
        self._standstill: Standstill | None = None
        self._named: Reply | None = None

    def take(self, made: Made, channel: Channel, hello: bytes = b"") -> None:
        """What the fork server gave. With `hello` it was adopted while paused: that is said at the first resume."""
        self.pid, self.start_time, self.pidfd = made.pid, made.start_time, made.pidfd
        self.channel = channel
        if (cgroup := self._taken.cgroup) is None:
            raise InternalError(f"cannot use sandbox {self.id}: it has no control group", sandbox=self.id)
        self._standstill = Standstill(
            self.id,
            channel,
            cgroup,
            turns=self._reclaiming,
            spawn=self._spawn,
            lost=self.lost,
            meet=(lambda: self.meet(hello)) if hello else None,
        )

    async def meet(self, hello: bytes) -> None:
        """Say hello as the successor of the edge that made it, and wait until init has named the calls it knows: a
        call of ours is answered behind all of them. May be repeated after a failure.

        :raises DeadlineExceededError: it does not answer.
        """
        channel = self._open_channel()
        if self._named is None:
            channel.hello(hello)
            self._named = Reply()
            channel.call("ping", {}, self._named, False)
        try:
            async with asyncio.timeout(MEET_TIMEOUT_S):
                await self._named.wait()
        except TimeoutError:
            raise DeadlineExceededError(
                f"cannot adopt sandbox {self.id}: PID 1 has not said in {MEET_TIMEOUT_S:g} s what it knows",
                sandbox=self.id,
                timeout_s=MEET_TIMEOUT_S,
            ) from None
        channel.named()

    def call(self, method: str, args: Any, caller: Caller, *, streaming: bool, tag: str = "") -> Answerer:
        if self._standstill is not None and self._standstill.paused:
            raise UnavailableError(f"cannot call {method}: sandbox {self.id} is paused", sandbox=self.id)
        return self._open_channel().call(method, args, caller, streaming, tag)

    async def pause(self) -> None:
        await self._steady().pause()

    async def resume(self) -> None:
        await self._steady().resume()

    @contextlib.asynccontextmanager
    async def capture(self) -> AsyncIterator[Captured]:
        if (upper := self._taken.upper) is None:
            raise ended_error(self.id, "it has been given back")
        async with captured(upper, self._steady(), self._check) as what:
            yield what

    def _check(self) -> None:
        if self._ending:
            raise ended_error(self.id, "it is being ended")

    async def recover(self) -> None:
        """Running, whatever an edge that died in a pause or resume left."""
        await self._steady().release_timers()

    def keep(self) -> bytes:
        cgroup, upper = self._taken.cgroup, self._taken.upper
        if cgroup is None or upper is None:
            raise ended_error(self.id, "it has been given back")
        return msgspec.msgpack.encode(Kept(self.pid, self.start_time, cgroup.name, upper.home))

    def living(self) -> Living | None:
        if self._ending or self.channel is None or not self.channel.open or self.pidfd < 0:
            return None
        return Living(Identity(self.pid, self.start_time), self.pidfd, self.channel.fileno())

    @property
    def upper_home(self) -> str | None:
        return self._taken.upper.home if self._taken.upper is not None else None

    def detach(self, error: DSecError) -> None:
        """Let go of it without ending anything; it is the next edge's."""
        self._ending = True
        if self._standstill is not None:
            self._standstill.leave()
        if self.channel is not None:
            self.channel.detach(error)
        self._close_pidfd()
        self._forget(self.id)

    def _open_channel(self) -> Channel:
        if self.channel is None:
            raise SandboxFailedError(f"cannot use sandbox {self.id}: it has no channel", sandbox=self.id)
        return self.channel

    def _steady(self) -> Standstill:
        if self._standstill is None:
            raise ended_error(self.id, "it was never made")
        return self._standstill

    def usage(self) -> dict[str, int]:
        cgroup = self._taken.cgroup
        if cgroup is None:
            return {}
        try:
            return {"memory_bytes": cgroup.memory_usage(), "pids": cgroup.pids_current()}
        except KernelError as error:
            _log.warning("usage not readable", sandbox=self.id, error=str(error))
            return {}

    def exited(self, status: int | None) -> None:
        """PID 1 has died, with a status if the fork server has reaped it. The channel's end follows, behind what it
        still holds; it is not waited for long."""
        self.exit_status = status
        self._exited.set()
        if self.channel is not None and not self._ending:
            asyncio.get_running_loop().call_later(EXIT_GRACE_S, self.lost, "PID 1 has ended")

    def lost(self, why: str) -> None:
        """The channel has ended: the sandbox has. Says so once its cause is known."""
        if not self._ending:
            self._ending = True
            self._spawn(self._explain(why))

    async def _explain(self, why: str) -> None:
        try:
            async with asyncio.timeout(EXIT_GRACE_S):
                await self._exited.wait()
        except TimeoutError:
            pass  # the fork server is gone or PID 1 lives on without its channel: destroy ends it
        if self._destroyed is not None:
            return
        end = self._end(why)
        if self.channel is not None:
            self.channel.end(ended_error(self.id, end.message, cause=end.cause))
        self._on_end(end)

    def _end(self, why: str) -> End:
        kills = self._oom_kills()
        status = self.exit_status
        detail: dict[str, Any] = {"channel": why} | ({"oom_kills": kills} if kills else {})
        if status is None:
            return End("channel_lost", f"PID 1 no longer answers ({why})", detail)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            detail["signal"] = number
            if kills and number == signal.SIGKILL:
                return End("memory", "its memory was used up and PID 1 was killed", detail)
            return End("init_killed", f"PID 1 was killed by signal {number}", detail)
        detail["exit_code"] = os.WEXITSTATUS(status)
        return End("init_exited", f"PID 1 ended with exit code {detail['exit_code']}", detail)

    def _oom_kills(self) -> int:
        try:
            return self._taken.cgroup.oom_kills() if self._taken.cgroup is not None else 0
        except KernelError:
            return 0  # the count only colours the cause

    def hasten(self) -> None:
        self._ending = True
        if self._standstill is None:
            return
        if self._standstill.busy and self.pidfd >= 0:
            # what was frozen must not run before it is ended
            with contextlib.suppress(KernelError):  # it is gone: what we want
                pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self._standstill.leave()

    async def destroy(self, error: DSecError) -> None:
        if self._destroyed is not None:
            await asyncio.shield(self._destroyed)
            return
        self._ending = True
        self._destroyed = asyncio.get_running_loop().create_future()
        try:
            if self.channel is not None:
                self.channel.end(error)
            faults.point("driver.destroy.begun")
            await self._kill()
            faults.point("driver.destroy.killed")
            await self._taken.give_back()
            faults.point("driver.destroy.returned")
        except Exception as failure:
            # of whatever kind: those who join must not wait for ever
            _log.error("sandbox not given back", sandbox=self.id, exc_info=failure)
            problem = InternalError(f"cannot give back all of sandbox {self.id}: {failure}", sandbox=self.id)
            self._destroyed.set_exception(problem)
            self._destroyed.exception()  # seen here; those who join get it again
            raise problem from failure
        finally:
            self._forget(self.id)
        self._destroyed.set_result(None)

    async def _kill(self) -> None:
        """End PID 1 and with it every process inside, by the fork server, or without one by the pidfd."""
        await self._unfreeze()
        if not self._exited.is_set():
            try:
                known = await self._server.kill(self.id)
            except UnavailableError:
                known = False
            if not known:
                # the fork server that made it is gone, or it was never made
                await self._kill_by_pidfd()
        self._close_pidfd()

    async def _unfreeze(self) -> None:
        """What is frozen may die only when it is thawed (cgroup v1), and must not run in between."""
        self.hasten()
        if self._standstill is not None:
            await self._standstill.give_way()

    def _close_pidfd(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    async def _kill_by_pidfd(self) -> None:
        if self.pidfd < 0:
            return
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(self.pidfd, gone.set)
        try:
            try:
                pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except KernelError:
                return  # it is gone: what we want
            async with asyncio.timeout(KILL_TIMEOUT_S):
                await gone.wait()
        except TimeoutError:
            raise InternalError(f"cannot end sandbox {self.id}: PID 1 ({self.pid}) has not died in time") from None
        finally:
            loop.remove_reader(self.pidfd)
