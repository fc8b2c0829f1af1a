"""What one sandbox has taken of the machine, given back in reverse order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import structlog

from dsec.drivers.base import Slot
from dsec.linux.cgroups import Cgroup, CgroupLimits, CgroupPool
from dsec.linux.uppers import Upper, make_upper, open_upper
from libdsec.protocol.spec import Limits

from .upper_dirs import UpperDirs

_log = structlog.get_logger("dsec.container")


class Layers(Protocol):
    """`dsec.store.mounts.LayerMounts`: mounts held by the fork server, counted."""

    def claim(self, digest: str) -> None: ...

    async def mount(self, digest: str) -> None: ...

    async def release(self, digest: str) -> None: ...

    def adopt(self, held: Iterable[str]) -> None: ...

    def use(self, digest: str) -> None: ...

    def lost(self, digests: Collection[str]) -> None: ...


class Taken:
    """Layers, a control group, an upper. Taking may stop half-way; `give_back` returns what there is."""

    def __init__(self, layers: Layers, cgroups: CgroupPool, uppers: UpperDirs) -> None:
        self._layers, self._cgroups, self._uppers = layers, cgroups, uppers
        self._held: list[str] = []
        self.cgroup: Cgroup | None = None
        self.upper: Upper | None = None

    async def hold(self, digests: Sequence[str]) -> None:
        # all before the first is mounted: that may take minutes, in which the others must not be collected
        for digest in digests:
            self._layers.claim(digest)
            self._held.append(digest)
        for digest in digests:
            await self._layers.mount(digest)

    def join_cgroup(self, limits: Limits) -> Cgroup:
        self.cgroup = self._cgroups.acquire(
            CgroupLimits(memory_bytes=limits.memory_bytes, cpu_cores=limits.cpu_cores, pids=limits.pids)
        )
        return self.cgroup

    async def make_upper(self, name: str, slot: Slot, limits: Limits) -> Upper:
        parent, owner = self._uppers.of(slot.index), slot.id_base
        if limits.disk_bytes is None and limits.disk_inodes is None:
            self.upper = make_upper(parent, name, owner)
            return self.upper
        making = asyncio.ensure_future(
            asyncio.to_thread(make_upper, parent, name, owner, limits.disk_bytes, limits.disk_inodes)
        )
        try:
            self.upper = await asyncio.shield(making)
        except asyncio.CancelledError:
            # the thread cannot be stopped: what it makes must be known here to be given back
            self.upper = await making
            raise
        return self.upper

    def adopt(self, layers: Sequence[str], cgroup: str, upper: str) -> Cgroup:
        """What a sandbox has that an earlier process took all this for; `upper` is its home.

        :raises OSError: a control group or directory is gone.
        """
        for digest in layers:
            self._layers.use(digest)
            self._held.append(digest)
        self.cgroup = self._cgroups.adopt(cgroup)
        self.upper = open_upper(os.path.dirname(upper), os.path.basename(upper))
        return self.cgroup

    async def give_back(self) -> None:
        """Legal once every process is dead; a second time nothing is left to give.

        :raises OSError | DSecError: the first refusal; the rest was given back.
        """
        failures: list[Exception] = []
        upper, self.upper = self.upper, None
        if upper is not None:
            try:
                upper.remove(self._uppers.trash)
            except OSError as error:
                failures.append(error)
        cgroup, self.cgroup = self.cgroup, None
        if cgroup is not None:
            try:
                if not self._cgroups.release(cgroup):
                    _log.warning("control group is still busy and was set aside", cgroup=cgroup.name)
            except OSError as error:
                failures.append(error)
        held, self._held = self._held, []
        for digest in reversed(held):
            try:  # whatever one layer says, the others are released too
                await self._layers.release(digest)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]
