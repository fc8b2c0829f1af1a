"""The plan: what the fork server is to do, as data (docs/wire.md, "The plan"). Pure."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Sequence

import msgspec

from dsec.drivers.base import Order

MASKED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
"""What tells about the host. Not among it: /proc/keys and /proc/key-users, which show only owners that the reader's
user namespace maps, and debugfs, tracefs and securityfs, which a fresh sysfs does not have."""

READ_ONLY = ("/proc/sys",)
"""A second lock: all of it belongs to host root, whom the sandbox's user namespace does not map, so writes are
refused by ownership already, as they are in /proc/irq, /proc/bus and /proc/sysrq-trigger. Each path is a mount in
every create."""

COMMAND_OOM_SCORE_ADJ = 500
"""Commands go before anything of the host does."""


SHM_SHARE = 4
"""Of a memory limit, one such part may lie in /dev/shm: no end of a process gives it back, and something must run."""


class CgroupPlace(msgspec.Struct, frozen=True):
    """The control group a sandbox got."""

    paths: tuple[str, ...]
    memory: str | None
    pids: str | None
    version: int


class Plan(msgspec.Struct, frozen=True):
    id: str
    layers: tuple[str, ...]
    upper: str
    work: str
    root: str
    id_base: int
    keeper: int
    cgroups: tuple[str, ...]
    memory_cgroup: str | None
    pids_cgroup: str | None
    cgroup_version: int
    hostname: str
    cpus: tuple[int, ...]
    memory_bytes: int
    shm_bytes: int
    masked: tuple[str, ...]
    readonly: tuple[str, ...]
    nested_user_namespaces: bool
    host_network: bool
    oom_score_adj: int


def exposed(paths: Sequence[str]) -> tuple[str, ...]:
    """Those that this kernel has and that somebody who is nobody to the host could read: each costs a mount a
    create."""
    return tuple(path for path in paths if _readable_by_others(path))


def _readable_by_others(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            return bool(mode & stat.S_IXOTH) and bool(os.listdir(path))
    except OSError:
        return False
    return bool(mode & stat.S_IROTH)


def choose_cpus(cores: float | None, allowed: Sequence[int], index: int) -> tuple[int, ...]:
    """The processors a sandbox sees: its cores rounded up, spread over the machine by its slot. Empty: all of them."""
    if cores is None or math.ceil(cores) >= len(allowed):
        return ()
    count = max(1, math.ceil(cores))
    start = index * count
    return tuple(sorted(allowed[(start + i) % len(allowed)] for i in range(count)))


def make_plan(
    order: Order,
    *,
    upper: str,
    work: str,
    root: str,
    cgroup: CgroupPlace,
    allowed_cpus: Sequence[int],
    shm_bytes: int,
    masked: tuple[str, ...],
    readonly: tuple[str, ...],
) -> Plan:
    limits = order.limits
    memory = limits.memory_bytes or 0
    return Plan(
        id=order.id,
        layers=order.layers,
        upper=upper,
        work=work,
        root=root,
        id_base=order.slot.id_base,
        keeper=order.slot.keeper,
        cgroups=cgroup.paths,
        memory_cgroup=cgroup.memory,
        pids_cgroup=cgroup.pids,
        cgroup_version=cgroup.version,
        hostname=order.hostname,
        cpus=choose_cpus(limits.cpu_cores, allowed_cpus, order.slot.index),
        memory_bytes=memory,
        shm_bytes=min(shm_bytes, memory // SHM_SHARE) if memory else shm_bytes,
        masked=masked,
        readonly=readonly,
        nested_user_namespaces=order.spec.nested_user_namespaces,
        host_network=order.spec.network == "host",
        oom_score_adj=COMMAND_OOM_SCORE_ADJ,
    )
