"""The fork server of this node: reached over one connection, a new one started when none answers.

The server is started detached (own session, own log file), so that it outlives the edge. Layers that were handed over
are remembered here by a descriptor of their own: a new server gets all of them before its first create. A server that
does not answer in time is killed: its sandboxes go on, and the next create starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import structlog

from libdsec.protocol import frames
from libdsec.protocol.calls import Hello
from libdsec.protocol.errors import DSecError, SandboxNotFoundError, UnavailableError, WireError

from .launch import kill_recorded, launch
from .link import MAX_DESCRIPTORS, Link, close_all, connect
from .plan import Plan

CREATE_GRACE_S = 5.0
"""Beyond the creator's own deadline, so that it is that one which ends the wait."""

SHUTDOWN_TIMEOUT_S = 30.0

_FAMILY, _TYPE = int(socket.AF_UNIX), int(socket.SOCK_SEQPACKET)
_log = structlog.get_logger("dsec.fork_server")


class Made(NamedTuple):
    """A sandbox as the fork server hands it over; the descriptors are the receiver's."""

    pid: int
    start_time: int
    pidfd: int
    channel: socket.socket


class ForkServer:
    """Whichever process it is at the moment."""

    def __init__(
        self,
        *,
        aether: str,
        socket_path: str,
        log_path: str,
        epoch: str,
        timeout_s: float,
        on_exit: Callable[[str, int], None],
    ) -> None:
        """`timeout_s` is for everything but a create; `on_exit` gets (sandbox, wait status) of each PID 1 reaped."""
        self._aether, self._socket_path, self._log_path = aether, socket_path, log_path
        self._timeout_s = timeout_s
        self._record_path = f"{socket_path}.pid"
        hello = Hello(frames.GENERATION, "edge", epoch=epoch, max_payload=frames.MAX_PAYLOAD)
        self._hello = msgspec.msgpack.encode(hello)
        self._on_exit = on_exit
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self._held: dict[str, int] = {}
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """:raises UnavailableError: none answers and none can be started."""
        await self._live()

    async def end_predecessor(self) -> bool:
        """End a server that an earlier edge left, with all its sandboxes. False when there was none."""
        sock = connect(self._socket_path)
        if sock is None:
            return False
        link = Link(asyncio.get_running_loop(), sock, self._on_exit, self._lost)
        try:
            await self._greet(link)
            await link.call("server.shutdown", {}, SHUTDOWN_TIMEOUT_S)
            link.close("it was shut down")
            # its answer comes before its end: it listens until then, and then takes away the socket's path
            await asyncio.to_thread(kill_recorded, self._record_path)
        except DSecError as error:
            # hung, or of another make; what it leaves running is swept with its control groups
            self._kill(link, f"the one of an earlier edge does not end: {error}")
        return True

    async def hold(self, key: str, mount: int) -> None:
        """Hand over a detached mount (the descriptor stays the caller's)."""
        copy = os.dup(mount)
        try:
            await (await self._live()).call("layer.hold", {"key": key}, self._timeout_s, mount)
        except BaseException:
            os.close(copy)
            raise
        earlier = self._held.get(key)
        self._held[key] = copy
        if earlier is not None:
            os.close(earlier)

    async def drop(self, key: str) -> None:
        """Let go of a layer. A server that is gone has let go of it already.

        :raises ConflictError: a running sandbox was made from it; it stays held.
        """
        if self._link is not None and self._link.open:
            await self._link.call("layer.drop", {"key": key}, self._timeout_s)
        copy = self._held.pop(key, None)
        if copy is not None:
            os.close(copy)

    async def create(self, plan: Plan, timeout_s: float) -> Made:
        """:raises UnavailableError: no answer; the caller must `kill` the id before it gives anything back.
        :raises DSecError: what the server refused; nothing is left of the sandbox."""
        answer = await (await self._live()).call("sandbox.create", plan, timeout_s + CREATE_GRACE_S)
        if len(answer.descriptors) != MAX_DESCRIPTORS:
            close_all(answer.descriptors)
            raise WireError(f"cannot take sandbox {plan.id}: {len(answer.descriptors)} descriptors came with it, not 2")
        pidfd, channel = answer.descriptors
        sock = socket.socket(_FAMILY, _TYPE, 0, fileno=channel)
        return Made(answer.values["pid"], answer.values["start_time"], pidfd, sock)

    async def kill(self, sandbox: str) -> bool:
        """Whether the server knew it. Its PID 1 is dead and reaped afterwards.

        :raises UnavailableError: no server answers (one that died took no sandbox with it: kill by pidfd).
        """
        link = self._link
        if link is None or not link.open:
            raise UnavailableError(f"cannot kill sandbox {sandbox}: no fork server answers")
        try:
            await link.call("sandbox.kill", {"id": sandbox}, self._timeout_s)
        except SandboxNotFoundError:
            return False
        except UnavailableError as error:
            if link.open:
                self._kill(link, str(error))
            raise
        return True

    async def close(self) -> None:
        """End the server. Its sandboxes were ended before; should one be left, it ends with it."""
        self._closed = True
        link = self._link
        if link is not None and link.open:
            try:
                await link.call("server.shutdown", {}, SHUTDOWN_TIMEOUT_S)
                link.close("it was shut down")
            except UnavailableError as error:
                _log.warning("fork server did not shut down", error=str(error))
                self._kill(link, str(error))
        elif self._process is not None:
            self._process.kill()  # it may live without a connection to say it on
        if self._process is not None:
            await asyncio.to_thread(_wait_for, self._process, self._timeout_s)
            for path in (self._socket_path, self._record_path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        close_all(list(self._held.values()))
        self._held.clear()

    async def _live(self) -> Link:
        if self._link is not None and self._link.open:
            return self._link
        async with self._connecting:
            if self._link is not None and self._link.open:
                return self._link
            if self._closed:
                raise UnavailableError("cannot reach the fork server: this edge is closing")
            sock = connect(self._socket_path) or self._start_one()
            link = Link(asyncio.get_running_loop(), sock, self._on_exit, self._lost)
            try:
                await self._greet(link)
                for key, mount in self._held.items():
                    await link.call("layer.hold", {"key": key}, self._timeout_s, mount)
            except DSecError as error:
                self._kill(link, str(error))
                raise
            except BaseException:
                # whoever asked has gone; the server is well, and the next one to ask connects anew
                link.close("nobody waits for it")
                raise
            self._link = link
            return link

    def _start_one(self) -> socket.socket:
        """It listens on a socket that we made: connecting works at once, and the hello comes when it is ready."""
        if self._process is not None:
            self._process.poll()  # reap the one before
        self._process = launch(self._aether, self._socket_path, self._log_path, self._record_path)
        _log.info("started the fork server", pid=self._process.pid)
        sock = connect(self._socket_path)
        if sock is None:
            raise UnavailableError(f"cannot start the fork server: it ended at once; see {self._log_path}")
        return sock

    async def _greet(self, link: Link) -> None:
        """:raises UnavailableError: no hello came."""
        link.send_hello(self._hello)
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.shield(link.hello)
        except TimeoutError:
            raise UnavailableError(
                f"cannot speak to the fork server: it did not say hello; see {self._log_path}"
            ) from None

    def _kill(self, link: Link, why: str) -> None:
        """End a server that does not answer any more, and the connection with it."""
        _log.error("killing the fork server", why=why)
        kill_recorded(self._record_path)
        link.close(why)

    def _lost(self, why: str) -> None:
        if not self._closed:
            _log.warning("fork server connection ended", why=why)


def _wait_for(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Until it has ended, by itself or by force."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout_s)
