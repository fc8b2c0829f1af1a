"""The container driver: takes, asks the fork server, hands over; undoes in reverse."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from dsec import faults
from dsec.drivers.base import OnEnd, OnKnown, Order
from dsec.linux.cgroups import CgroupPool
from dsec.store.mounts import Drop, Hold
from libdsec.protocol import frames
from libdsec.protocol.calls import Hello
from libdsec.protocol.errors import (
    CapacityError,
    DeadlineExceededError,
    DSecError,
    InternalError,
    SandboxFailedError,
    SandboxNotFoundError,
    UnavailableError,
    UnsupportedOperationError,
)
from libdsec.protocol.spec import SandboxSpec

from .channel import Channel, Successor, ended_error, receive_buffer
from .descriptors import Descriptors
from .fork_server import ForkServer
from .instance import ContainerInstance, Kept
from .plan import MASKED, READ_ONLY, CgroupPlace, exposed, make_plan
from .sandboxes import Sandboxes
from .taken import Layers, Taken
from .upper_dirs import UpperDirs

_EXHAUSTED = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EMLINK)
)
"""What the machine is out of: another node may have it."""

RECLAIMS_AT_ONCE = 4
"""Each takes a thread and much of a processor."""

KILLS_AT_ONCE = 64
"""Of what an earlier edge left."""

_log = structlog.get_logger("dsec.container")


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """What the driver is told once."""

    aether: str
    socket_path: str
    log_path: str
    root_dir: str
    """An empty directory that sandboxes mount on, inside their own mount namespaces."""
    uppers_dir: str
    shm_bytes: int
    epoch: str
    start_number: int = 0
    """Above that of every earlier edge of this node: call numbers are never those of a predecessor."""
    fork_server_timeout_s: float = 10.0


class ContainerDriver:
    """Implements `dsec.drivers.base.Driver`."""

    backend = "container"

    def __init__(
        self,
        config: ContainerConfig,
        *,
        cgroups: CgroupPool,
        layers: Callable[[Hold, Drop], Layers],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        attach: Callable[[Descriptors], Awaitable[None]] | None = None,
    ) -> None:
        """`layers` makes the mounts' keeper from how it hands them over and takes them back; `spawn` runs a coroutine
        in the task group of whoever owns the driver. `attach` is called once the fork server is there, before any
        layer is mounted, and may have it keep descriptors."""
        self._config = config
        self._cgroups = cgroups
        self._spawn = spawn
        self._attach = attach
        self._instances = Sandboxes(spawn)
        self._server = ForkServer(
            aether=config.aether,
            socket_path=config.socket_path,
            log_path=config.log_path,
            epoch=config.epoch,
            timeout_s=config.fork_server_timeout_s,
            owner=self._instances,
        )
        self._layers = layers(self._server.hold, self._server.drop)
        self._instances.on_layers_lost = self._layers.lost
        self._buffer = receive_buffer()
        self._hello = msgspec.msgpack.encode(
            Hello(frames.GENERATION, "edge", epoch=config.epoch, max_payload=frames.MAX_PAYLOAD)
        )
        self._reclaiming = asyncio.Semaphore(RECLAIMS_AT_ONCE)
        self._uppers: UpperDirs | None = None
        self._allowed: tuple[int, ...] = ()
        self._masked: tuple[str, ...] = ()
        self._readonly: tuple[str, ...] = ()

    def check(self, spec: SandboxSpec) -> None:
        if any(spec.network_rules.values()):
            allowed = sorted(rule for rule, wanted in spec.network_rules.items() if wanted)
            raise UnsupportedOperationError(
                f"cannot allow network access ({', '.join(allowed)}): this version gives sandboxes the loopback only",
                option="network_rules",
            )

    async def start(self) -> None:
        """See `Driver.start`."""
        config = self._config
        os.makedirs(config.root_dir, 0o700, exist_ok=True)
        self._allowed = tuple(sorted(os.sched_getaffinity(0)))
        self._masked, self._readonly = exposed(MASKED), exposed(READ_ONLY)
        self._uppers = UpperDirs(config.uppers_dir)
        held = await self._server.start()
        if self._attach is not None:
            await self._attach(self._server.descriptors)
        self._layers.adopt(held)

    async def adopt(
        self, order: Order, kept: bytes, on_end: OnEnd, on_known: OnKnown, *, paused: bool
    ) -> ContainerInstance:
        record = msgspec.msgpack.decode(kept, type=Kept)
        if self._server.found.get(order.id) != (record.pid, record.start_time):
            raise ended_error(order.id, "it has ended")
        taken, instance = self._begin(order.id, on_end)
        try:
            await self._take_over(order, record, taken, instance, on_known, paused)
        except asyncio.CancelledError:
            instance.detach(UnavailableError(f"cannot use sandbox {order.id}: its adoption was given up"))
            raise
        except BaseException as error:
            if taken.cgroup is not None:
                # what is frozen can be killed only so, and the fork server would wait for it
                await asyncio.to_thread(taken.cgroup.kill)
            await _through_cancel(self._spawn(self._undo(order.id, instance)))
            if isinstance(error, SandboxNotFoundError):
                raise ended_error(order.id, "it has ended") from None
            if isinstance(error, OSError):
                raise ended_error(order.id, f"something that it had is gone: {error}") from error
            raise
        return instance

    async def _take_over(
        self, order: Order, record: Kept, taken: Taken, instance: ContainerInstance, on_known: OnKnown, paused: bool
    ) -> None:
        cgroup = taken.adopt(order.layers, record.cgroup, record.upper)
        made = await self._server.adopt(order.id)
        frozen = paused and cgroup.frozen()
        channel = self._channel(made.channel, instance, Successor(self._config.epoch, on_known))
        instance.take(made, channel, self._hello if frozen else b"")
        faults.point("driver.adopt.taken")
        if frozen:
            return  # its acquaintance is made at its resume
        cgroup.thaw()
        await instance.meet(self._hello)
        faults.point("driver.adopt.greeted")
        await instance.recover()
        if paused:
            try:
                await instance.pause()
            except DSecError as error:
                # better that it runs than that it is ended: it is asked to run before it is used anyway
                _log.warning("sandbox found running is not paused again", sandbox=order.id, error=str(error))

    async def sweep(self) -> None:
        if self._uppers is None:
            raise InternalError("cannot sweep: the container driver was not started")
        cgroups = await asyncio.to_thread(self._cgroups.sweep)
        strays = [sandbox for sandbox in self._server.found if sandbox not in self._instances]
        self._server.found = {}
        for start in range(0, len(strays), KILLS_AT_ONCE):
            await asyncio.gather(*(self._end_stray(sandbox) for sandbox in strays[start : start + KILLS_AT_ONCE]))
        homes = {home for instance in self._instances.values() if (home := instance.upper_home)}
        uppers = await asyncio.to_thread(self._uppers.clear, homes)
        if strays or cgroups or uppers:
            _log.info("took away what an earlier edge left", sandboxes=len(strays), cgroups=cgroups, uppers=uppers)

    async def _end_stray(self, sandbox: str) -> None:
        try:
            await self._server.kill(sandbox)
        except DSecError as error:
            # its processes were killed with their control group; only the fork server did not say so
            _log.warning("sandbox of an earlier edge not seen to end", sandbox=sandbox, error=str(error))

    async def create(self, order: Order, on_end: OnEnd) -> ContainerInstance:
        taken, instance = self._begin(order.id, on_end)
        try:
            async with asyncio.timeout(order.timeout_s):
                await self._make(order, taken, instance)
        except BaseException as error:
            await _through_cancel(self._spawn(self._undo(order.id, instance)))
            if isinstance(error, TimeoutError):
                raise DeadlineExceededError(
                    f"cannot create sandbox {order.id}: not done in {order.timeout_s:g} s", timeout_s=order.timeout_s
                ) from None
            if isinstance(error, OSError) and error.errno in _EXHAUSTED:
                raise CapacityError(
                    f"cannot create sandbox {order.id}: {error}",
                    errno=error.errno,
                    remedy="make room: stop sandboxes, remove images, or free what the message names",
                ) from error
            if isinstance(error, OSError):
                raise InternalError(
                    f"cannot create sandbox {order.id}: {error}", sandbox=order.id, errno=error.errno or 0
                ) from error
            raise
        return instance

    def _begin(self, sandbox: str, on_end: OnEnd) -> tuple[Taken, ContainerInstance]:
        if self._uppers is None:
            raise InternalError("cannot take a sandbox: the container driver was not started")
        taken = Taken(self._layers, self._cgroups, self._uppers)
        instance = ContainerInstance(
            sandbox=sandbox,
            taken=taken,
            server=self._server,
            reclaiming=self._reclaiming,
            on_end=on_end,
            spawn=self._spawn,
            forget=self._instances.forget,
        )
        self._instances[sandbox] = instance
        return taken, instance

    async def _make(self, order: Order, taken: Taken, instance: ContainerInstance) -> None:
        await taken.hold(order.layers)
        cgroup = taken.join_cgroup(order.limits)
        upper = await taken.make_upper(order.id, order.slot, order.limits)
        plan = make_plan(
            order,
            upper=upper.path_upper,
            work=upper.path_work,
            root=self._config.root_dir,
            cgroup=CgroupPlace(tuple(cgroup.paths), cgroup.memory, cgroup.pids, cgroup.version),
            allowed_cpus=self._allowed,
            shm_bytes=self._config.shm_bytes,
            masked=self._masked,
            readonly=self._readonly,
        )
        faults.point("driver.create.taken")
        made = await self._server.create(plan, order.timeout_s)
        channel = self._channel(made.channel, instance)
        instance.take(made, channel)
        faults.point("driver.create.made")
        await self._greet(instance, channel)
        faults.point("driver.create.greeted")

    def _channel(self, sock: socket.socket, instance: ContainerInstance, successor: Successor | None = None) -> Channel:
        return Channel(
            asyncio.get_running_loop(),
            sock,
            self._buffer,
            instance.lost,
            first_call=self._config.start_number << 32 | 1,
            successor=successor,
        )

    async def _greet(self, instance: ContainerInstance, channel: Channel) -> None:
        channel.hello(self._hello)
        channel.read_now()  # PID 1 said hello before the fork server answered
        try:
            await channel.ready
        except asyncio.CancelledError:
            # a cancel of ours reaches the future it waits for as well: only the channel tells the two apart
            if not channel.open:
                raise SandboxFailedError(f"cannot create sandbox {instance.id}: PID 1 ended at once") from None
            raise

    async def _undo(self, sandbox: str, instance: ContainerInstance) -> None:
        """Of a create that failed: nothing may be left, whatever step it was."""
        try:
            await instance.destroy(
                SandboxFailedError(f"cannot use sandbox {sandbox}: it was never made", sandbox=sandbox)
            )
        except InternalError as error:
            _log.error("a failed create left something behind", sandbox=sandbox, error=str(error))

    async def close(self, *, leave: bool = False) -> None:
        if leave:
            for instance in list(self._instances.values()):
                instance.detach(UnavailableError(f"cannot use sandbox {instance.id}: this edge is closing"))
            await self._server.leave()
        else:
            await self._server.close()
        if self._uppers is not None:
            await asyncio.to_thread(self._uppers.trash.close)
        if not await asyncio.to_thread(self._cgroups.close) and not leave:
            _log.warning("control groups are left; the next start takes them away")


async def _through_cancel(task: asyncio.Task[None]) -> None:
    """Wait for what must be finished even if we are canceled meanwhile; the cancel is raised afterwards."""
    canceled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            canceled = error
    if canceled is not None:
        raise canceled
