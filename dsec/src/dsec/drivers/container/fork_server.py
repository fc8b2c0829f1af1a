"""The fork server of this node: reached over one connection, a new one started when none answers.

The server is started detached (own session, own log file), so that it outlives the edge; the next edge connects to it
and asks what it has. Layers that were handed over are remembered here by a descriptor of their own: a new server gets
all of them before its first create. Of layers that an earlier edge handed over there is none: a new server has to get
them anew. A server that does not answer in time is killed: its sandboxes go on. Whenever the connection is lost, it is
made again at once, and what the server at its other end does not know of the living sandboxes is handed to it, so that
their channels outlive us.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Collection, Coroutine
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog

from libdsec.protocol import frames
from libdsec.protocol.calls import Hello
from libdsec.protocol.errors import (
    DSecError,
    NotFoundError,
    SandboxNotFoundError,
    UnavailableError,
    UnsupportedOperationError,
    WireError,
)

from .descriptors import Descriptors
from .launch import KILL_TIMEOUT_S, end_recorded, kill_recorded, launch, lives, wait_for
from .link import MAX_DESCRIPTORS, Answer, Link, close_all, connect
from .plan import Plan

CREATE_GRACE_S = 5.0
"""Beyond the creator's own deadline, so that it is that one which ends the wait."""

SHUTDOWN_TIMEOUT_S = 30.0
RETRY_S = (0.05, 0.2, 1.0, 5.0)
"""Between attempts to have a server again; the last one is repeated."""

PARTED_AFTER = 100
"""Hundredths of a second that a server has to die after it has closed the connection."""

MAX_PAGES = 64
"""Of one list; 512 entries each are more than a server keeps."""

_FAMILY, _TYPE = int(socket.AF_UNIX), int(socket.SOCK_SEQPACKET)
_log = structlog.get_logger("dsec.fork_server")


class Identity(NamedTuple):
    """A PID 1; with the start time a pid names one process for good."""

    pid: int
    start_time: int


class Made(NamedTuple):
    """A sandbox as the fork server hands it over; the descriptors are the receiver's."""

    pid: int
    start_time: int
    pidfd: int
    channel: socket.socket


class Living(NamedTuple):
    """A sandbox as its owner has it; the descriptors stay the owner's."""

    identity: Identity
    pidfd: int
    channel: int


class Owner(Protocol):
    """Who has the sandboxes."""

    def exited(self, sandbox: str, status: int | None) -> None:
        """PID 1 has died; its wait status, if the server could see it."""

    def sandboxes(self) -> list[str]:
        """Those that live."""

    def living(self, sandbox: str) -> Living | None:
        """None when it has ended meanwhile."""

    def layers_lost(self, keys: Collection[str]) -> None:
        """The server that held them for an earlier edge is gone, and with it they are."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it in the owner's task group."""


class ForkServer:
    """Whichever process it is at the moment."""

    def __init__(
        self, *, aether: str, socket_path: str, log_path: str, epoch: str, timeout_s: float, owner: Owner
    ) -> None:
        """`timeout_s` is for everything but a create."""
        self._aether, self._socket_path, self._log_path = aether, socket_path, log_path
        self._timeout_s = timeout_s
        self._owner = owner
        self._record_path = f"{socket_path}.pid"
        hello = Hello(frames.GENERATION, "edge", epoch=epoch, max_payload=frames.MAX_PAYLOAD)
        self._hello = msgspec.msgpack.encode(hello)
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self._held: dict[str, int] = {}
        self._borrowed: set[str] = set()
        """Layers that the server holds and we have no descriptor of."""
        self.descriptors = Descriptors(self._live, timeout_s)
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self.found: dict[str, Identity] = {}
        """Sandboxes that were there at the start."""

    async def start(self) -> Collection[str]:
        """Connect to the server that an earlier edge left, or else start one. Returns the layers that it holds.

        :raises UnavailableError: none answers and none can be started.
        """
        try:
            await self._take_stock(await self._live())
        except DSecError as error:
            if self._process is not None:
                raise
            _log.error("the fork server of an earlier edge is given up", why=str(error))
            if self._link is not None:
                self._link.close(str(error))
            await asyncio.to_thread(kill_recorded, self._record_path)
            async with self._connecting:
                self._link = await self._open(await self._start_one())
            await self._take_stock(self._link)
        return frozenset(self._borrowed)

    async def _take_stock(self, link: Link) -> None:
        sandboxes = await self._list(link, "sandboxes", "sandbox.list", "id")
        self.found = {entry["id"]: Identity(entry["pid"], entry["start_time"]) for entry in sandboxes}
        self._borrowed = {entry["key"] for entry in await self._list(link, "layers", "layer.list", "key")}

    async def hold(self, key: str, mount: int) -> None:
        """Hand over a detached mount (the descriptor stays the caller's)."""
        copy = os.dup(mount)
        try:
            await (await self._live()).call("layer.hold", {"key": key}, self._timeout_s, (mount,))
        except BaseException:
            os.close(copy)
            raise
        earlier = self._held.get(key)
        self._held[key] = copy
        self._borrowed.discard(key)
        if earlier is not None:
            os.close(earlier)

    async def drop(self, key: str) -> None:
        """Let go of a layer. A server that is gone has let go of it already.

        :raises ConflictError: a running sandbox was made from it; it stays held.
        """
        if self._link is not None and self._link.open:
            with contextlib.suppress(NotFoundError):
                await self._link.call("layer.drop", {"key": key}, self._timeout_s)
        self._borrowed.discard(key)
        copy = self._held.pop(key, None)
        if copy is not None:
            os.close(copy)

    async def create(self, plan: Plan, timeout_s: float) -> Made:
        """:raises UnavailableError: no answer; the caller must `kill` the id before it gives anything back.
        :raises DSecError: what the server refused; nothing is left of the sandbox."""
        link = await self._live()
        try:
            return _made(plan.id, await link.call("sandbox.create", plan, timeout_s + CREATE_GRACE_S))
        except NotFoundError as error:  # the server that held its layers for an earlier edge died meanwhile
            raise UnavailableError(f"cannot create sandbox {plan.id} yet, its layers went: {error}") from None

    async def adopt(self, sandbox: str) -> Made:
        """One of those `found`.

        :raises SandboxNotFoundError: it has ended.
        :raises UnavailableError: no answer.
        """
        link = await self._live()
        return _made(sandbox, await link.call("sandbox.adopt", {"id": sandbox}, self._timeout_s))

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
        await self._stop_reconnecting()
        link = self._link
        if link is not None and link.open:
            try:
                await link.call("server.shutdown", {}, SHUTDOWN_TIMEOUT_S)
                link.close("it was shut down")
            except UnavailableError as error:
                _log.warning("fork server did not shut down", error=str(error))
                self._kill(link, str(error))
            if self._process is None:
                await asyncio.to_thread(end_recorded, self._record_path, self._timeout_s)
        elif self._process is not None:
            self._process.kill()  # it may live without a connection to say it on
        if self._process is not None:
            await asyncio.to_thread(wait_for, self._process, self._timeout_s)
        for path in (self._socket_path, self._record_path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._let_go()

    async def leave(self) -> None:
        """Part from the server, which goes on with all it has."""
        await self._stop_reconnecting()
        if self._link is not None:
            self._link.close("this edge leaves it to the next one")
        if self._process is not None:
            self._process.returncode = 0  # not ours to wait for any more
        self._let_go()

    async def _stop_reconnecting(self) -> None:
        self._closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])

    def _let_go(self) -> None:
        close_all(list(self._held.values()))
        self._held.clear()
        self.descriptors.close()

    async def _live(self) -> Link:
        if self._link is not None and self._link.open:
            return self._link
        async with self._connecting:
            if self._link is not None and self._link.open:
                return self._link
            if self._closed:
                raise UnavailableError("cannot reach the fork server: this edge is closing")
            self._link = await self._open(connect(self._socket_path) or await self._start_one())
            return self._link

    async def _open(self, sock: socket.socket) -> Link:
        link = Link(asyncio.get_running_loop(), sock, self._owner.exited, self._lost)
        try:
            await self._greet(link)
            await self._hand_over(link)
        except DSecError as error:
            self._kill(link, str(error))
            raise
        except BaseException:
            # whoever asked has gone; the server is well, and the next one to ask connects anew
            link.close("nobody waits for it")
            raise
        return link

    async def _start_one(self) -> socket.socket:
        """It listens on a socket that we made: connecting works at once, and the hello comes when it is ready."""
        if self._process is not None:
            # the one before is reaped; it listens no more, so it is ending
            await asyncio.to_thread(wait_for, self._process, KILL_TIMEOUT_S)
        self._process = launch(self._aether, self._socket_path, self._log_path, self._record_path)
        _log.info("started the fork server", pid=self._process.pid)
        sock = connect(self._socket_path)
        if sock is None:
            raise UnavailableError(f"cannot start the fork server: it ended at once; see {self._log_path}")
        return sock

    async def _greet(self, link: Link) -> None:
        """:raises UnavailableError: no hello came, or one of another generation."""
        link.send_hello(self._hello)
        try:
            async with asyncio.timeout(self._timeout_s):
                hello = await asyncio.shield(link.hello)
        except TimeoutError:
            raise UnavailableError(
                f"cannot speak to the fork server: it did not say hello; see {self._log_path}"
            ) from None
        if hello.generation != frames.GENERATION:
            raise UnavailableError(
                f"cannot speak to the fork server: it is of generation {hello.generation}, not {frames.GENERATION}"
            )

    async def _hand_over(self, link: Link) -> None:
        """What we have and the server does not know: nothing at our start, everything when the one before it died."""
        await self.descriptors.hand_over(link)
        for key, mount in list(self._held.items()):
            await link.call("layer.hold", {"key": key}, self._timeout_s, (mount,))
        if self._borrowed:
            still = {entry["key"] for entry in await self._list(link, "layers", "layer.list", "key")}
            lost = self._borrowed - still
            self._borrowed &= still
            self._owner.layers_lost(lost)
        if self._owner.sandboxes():
            known = {entry["id"] for entry in await self._list(link, "sandboxes", "sandbox.list", "id")}
            for sandbox in self._owner.sandboxes():
                if sandbox not in known and not await self._hold_sandbox(link, sandbox):
                    return

    async def _hold_sandbox(self, link: Link, sandbox: str) -> bool:
        """False when this server cannot keep what another one made."""
        living = self._owner.living(sandbox)
        if living is None:
            return True
        copies: list[int] = []
        try:
            for descriptor in (living.pidfd, living.channel):
                copies.append(os.dup(descriptor))  # it may end, and its descriptors with it, while we wait
            args = {"id": sandbox, **living.identity._asdict()}
            await link.call("sandbox.hold", args, self._timeout_s, copies)
        except UnavailableError:
            raise
        except UnsupportedOperationError as error:
            _log.warning("living sandboxes will not outlive this edge", why=str(error))
            return False
        except (DSecError, OSError) as error:
            _log.warning("sandbox will not outlive this edge", sandbox=sandbox, why=str(error))
        finally:
            close_all(copies)
        return True

    async def _list(self, link: Link, field: str, method: str, key: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        for _ in range(MAX_PAGES):
            after = {"after": entries[-1][key]} if entries else {}
            page = (await link.call(method, after, self._timeout_s)).values
            if not isinstance(found := page.get(field), list):
                raise WireError(f"cannot read {method}: it has no {field}")
            entries += found
            if not found or not page.get("more"):
                return entries
        raise WireError(f"cannot read {method}: more than {MAX_PAGES} pages")

    def _kill(self, link: Link, why: str) -> None:
        """End a server that does not answer any more, and the connection with it."""
        _log.error("killing the fork server", why=why)
        kill_recorded(self._record_path)
        link.close(why)

    def _lost(self, why: str) -> None:
        if self._closed:
            return
        _log.warning("fork server connection ended", why=why)
        if self._link is not None and (self._reconnecting is None or self._reconnecting.done()):
            self._reconnecting = self._owner.spawn(self._reconnect())

    async def _reconnect(self) -> None:
        for _ in range(PARTED_AFTER):
            if not lives(self._record_path):
                break
            await asyncio.sleep(0.01)
        else:
            # it has a newer edge, and must not be taken from that; or else the next create connects to it again
            _log.error("the fork server lives, and has parted from this edge")
            return
        attempt = 0
        while not self._closed:
            try:
                await self._live()
                return
            except (DSecError, OSError) as error:
                _log.error("no fork server", error=str(error))
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
            attempt += 1


def _made(sandbox: str, answer: Answer) -> Made:
    if len(answer.descriptors) != MAX_DESCRIPTORS:
        close_all(answer.descriptors)
        raise WireError(f"cannot take sandbox {sandbox}: {len(answer.descriptors)} descriptors came with it, not 2")
    pidfd, channel = answer.descriptors
    sock = socket.socket(_FAMILY, _TYPE, 0, fileno=channel)
    return Made(answer.values["pid"], answer.values["start_time"], pidfd, sock)
