"""The container driver: takes, asks the fork server, hands over; undoes in reverse."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from dsec.drivers.base import OnEnd, Order
from dsec.linux.cgroups import CgroupPool
from dsec.store.mounts import Drop, Hold
from libdsec.protocol import frames
from libdsec.protocol.calls import Hello
from libdsec.protocol.errors import (
    CapacityError,
    DeadlineExceededError,
    InternalError,
    SandboxFailedError,
    UnsupportedOperationError,
)
from libdsec.protocol.spec import SandboxSpec

from .channel import Channel, receive_buffer
from .fork_server import ForkServer, Made
from .instance import ContainerInstance
from .plan import MASKED, READ_ONLY, CgroupPlace, exposed, make_plan
from .taken import Layers, Taken
from .upper_dirs import UpperDirs

_EXHAUSTED = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EMLINK)
)
"""What the machine is out of: another node may have it."""

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
    ) -> None:
        """`layers` makes the mounts' keeper from how it hands them over and takes them back; `spawn` runs a coroutine
        in the task group of whoever owns the driver."""
        self._config = config
        self._cgroups = cgroups
        self._spawn = spawn
        self._server = ForkServer(
            aether=config.aether,
            socket_path=config.socket_path,
            log_path=config.log_path,
            epoch=config.epoch,
            timeout_s=config.fork_server_timeout_s,
            on_exit=self._exited,
        )
        self._layers = layers(self._server.hold, self._server.drop)
        self._instances: dict[str, ContainerInstance] = {}
        self._buffer = receive_buffer()
        self._hello = msgspec.msgpack.encode(
            Hello(frames.GENERATION, "edge", epoch=config.epoch, max_payload=frames.MAX_PAYLOAD)
        )
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
        """See `Driver.start`. Sandboxes of an earlier edge are ended, not adopted."""
        config = self._config
        os.makedirs(config.root_dir, 0o700, exist_ok=True)
        self._allowed = tuple(sorted(os.sched_getaffinity(0)))
        self._masked, self._readonly = exposed(MASKED), exposed(READ_ONLY)
        self._uppers = UpperDirs(config.uppers_dir)
        if await self._server.end_predecessor():
            _log.info("ended the fork server of an earlier edge")
        swept = self._cgroups.sweep()
        left = self._uppers.clear()
        if swept or left:
            _log.info("took away what an earlier edge left", cgroups=swept, uppers=left)
        await self._server.start()

    async def create(self, order: Order, on_end: OnEnd) -> ContainerInstance:
        if self._uppers is None:
            raise InternalError("cannot create a sandbox: the container driver was not started")
        taken = Taken(self._layers, self._cgroups, self._uppers)
        instance = ContainerInstance(
            sandbox=order.id,
            taken=taken,
            server=self._server,
            on_end=on_end,
            spawn=self._spawn,
            forget=lambda sandbox: self._instances.pop(sandbox, None),
        )
        self._instances[order.id] = instance
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
        made = await self._server.create(plan, order.timeout_s)
        await self._attach(instance, made)

    async def _attach(self, instance: ContainerInstance, made: Made) -> None:
        instance.pid, instance.pidfd = made.pid, made.pidfd
        channel = Channel(asyncio.get_running_loop(), made.channel, self._buffer, instance.lost)
        instance.channel = channel
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

    def _exited(self, sandbox: str, status: int) -> None:
        instance = self._instances.get(sandbox)
        if instance is not None:
            instance.exited(status)

    async def close(self) -> None:
        await self._server.close()
        if self._uppers is not None:
            await asyncio.to_thread(self._uppers.trash.close)
        if not await asyncio.to_thread(self._cgroups.close):
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
