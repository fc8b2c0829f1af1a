"""One running container sandbox, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from dsec.bus import Answerer, Caller
from dsec.drivers.base import End, OnEnd
from dsec.linux import KernelError
from dsec.linux.processes import pidfd_send_signal
from libdsec.protocol.errors import DSecError, InternalError, SandboxFailedError, UnavailableError

from .channel import Channel
from .fork_server import ForkServer
from .taken import Taken

EXIT_GRACE_S = 0.3
"""After a channel has ended: how long the fork server gets to say how PID 1 died."""

KILL_TIMEOUT_S = 10.0

_log = structlog.get_logger("dsec.container")


class ContainerInstance:
    """Alive from the create's answer to `destroy`."""

    def __init__(
        self,
        *,
        sandbox: str,
        taken: Taken,
        server: ForkServer,
        on_end: OnEnd,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        forget: Callable[[str], object],
    ) -> None:
        """`spawn` runs a coroutine under the driver's own task group; `forget` is called when all was given back."""
        self.id = sandbox
        self.pid = 0
        self.pidfd = -1
        self.channel: Channel | None = None
        self.exit_status: int | None = None
        self._taken = taken
        self._server = server
        self._on_end = on_end
        self._spawn = spawn
        self._forget = forget
        self._exited = asyncio.Event()
        self._ending = False
        self._destroyed: asyncio.Future[None] | None = None

    def call(self, method: str, args: Any, caller: Caller, *, streaming: bool) -> Answerer:
        if self.channel is None:
            raise SandboxFailedError(f"cannot use sandbox {self.id}: it has no channel", sandbox=self.id)
        return self.channel.call(method, args, caller, streaming)

    def usage(self) -> dict[str, int]:
        cgroup = self._taken.cgroup
        if cgroup is None:
            return {}
        try:
            return {"memory_bytes": cgroup.memory_usage(), "pids": cgroup.pids_current()}
        except KernelError as error:
            _log.warning("usage not readable", sandbox=self.id, error=str(error))
            return {}

    def exited(self, status: int) -> None:
        """The fork server has reaped PID 1. The channel's end follows, behind what it still holds; it is not waited
        for long."""
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
            self.channel.end(
                SandboxFailedError(f"cannot use sandbox {self.id}: {end.message}", sandbox=self.id, cause=end.cause)
            )
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

    async def destroy(self, error: DSecError) -> None:
        if self._destroyed is not None:
            await asyncio.shield(self._destroyed)
            return
        self._ending = True
        self._destroyed = asyncio.get_running_loop().create_future()
        try:
            if self.channel is not None:
                self.channel.end(error)
            await self._kill()
            await self._taken.give_back()
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
        if self.exit_status is None:
            try:
                known = await self._server.kill(self.id)
            except UnavailableError:
                known = False
            if not known:
                # the fork server that made it is gone, or it was never made
                await self._kill_by_pidfd()
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
