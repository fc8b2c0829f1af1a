"""The plan: what the fork server is to do, as data (docs/wire.md, "The plan"). Pure."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import msgspec

from dsec.drivers.base import Order

MASKED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/kernel/debug",
    "/sys/kernel/security",
    "/sys/kernel/tracing",
)
"""What tells about the host or its other sandboxes."""

READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
"""What belongs to host root and therefore refuses writes of a sandbox anyway; the mount holds should ownership ever
not."""

COMMAND_OOM_SCORE_ADJ = 500
"""Commands go before anything of the host does."""


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
    oom_score_adj: int


def existing(paths: Sequence[str]) -> tuple[str, ...]:
    """Those that this kernel has: each path costs a mount at every create."""
    return tuple(path for path in paths if os.path.exists(path))


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
        shm_bytes=min(shm_bytes, memory) if memory else shm_bytes,
        masked=masked,
        readonly=readonly,
        nested_user_namespaces=order.spec.nested_user_namespaces,
        oom_score_adj=COMMAND_OOM_SCORE_ADJ,
    )
