"""Privileges, namespaces, filters and control groups."""

from __future__ import annotations

import os
import platform
import subprocess

from ..cgroups import Cgroup, CgroupLimits, CgroupPool, Hierarchies
from .child import in_child
from .verdict import Degraded, Trial

_NEEDED = {0: "CHOWN", 1: "DAC_OVERRIDE", 6: "SETGID", 7: "SETUID", 12: "NET_ADMIN", 21: "SYS_ADMIN"}
_MEMORY = 64 * 1024 * 1024


def _kernel(_: str) -> str:
    return f"Linux {platform.release()} on {platform.machine()}"


def _privileges(_: str) -> str:
    if os.geteuid() != 0:
        raise RuntimeError(f"running as user {os.geteuid()}, not as root")
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    lacking = [name for bit, name in _NEEDED.items() if not effective >> bit & 1]
    if lacking:
        raise RuntimeError(f"root without {', '.join(lacking)}")
    return "root with the capabilities that a node needs"


def _cgroups(_: str) -> str:
    """Set each limit on a group of our own, put a process into it, and read back what it uses."""
    hierarchies = Hierarchies.detect()
    lacking = [name for name in ("memory", "cpu", "pids") if hierarchies.of(name) is None]
    if lacking:
        raise RuntimeError(f"no hierarchy has {', '.join(lacking)}")
    pool = CgroupPool(f"dsec-probe-{os.getpid()}", hierarchies)
    try:
        group = pool.acquire(CgroupLimits(memory_bytes=_MEMORY, cpu_cores=1.0, pids=16))
        try:
            return _use(group, hierarchies)
        finally:
            pool.release(group)
    finally:
        pool.close()


def _use(group: Cgroup, hierarchies: Hierarchies) -> str:
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL) as process:
        try:
            for path in group.paths:
                with open(f"{path}/cgroup.procs", "w", encoding="ascii") as file:
                    file.write(str(process.pid))
            counted = group.pids_current()
        finally:
            process.kill()
    if counted < 1:
        raise RuntimeError("a process was put into a group and not counted")
    places = {f"v{h.version} {'+'.join(h.controllers)} at {h.path}" for h in hierarchies.all}
    if group.version == 1:
        raise Degraded(
            f"{'; '.join(sorted(places))}: limits work; v1 has no memory.reclaim and keeps removed groups for a while",
            "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1) for less memory a sandbox",
        )
    return "; ".join(sorted(places))


TRIALS = (
    Trial("kernel", _kernel, "missing", "use Linux"),
    Trial("privileges", _privileges, "missing", "run as root; in a container, give it all capabilities"),
    Trial(
        "namespaces",
        in_child("namespaces"),
        "missing",
        "use a kernel with these namespaces, and a container that may make them (--privileged)",
    ),
    Trial(
        "user-namespaces",
        in_child("user_namespace"),
        "missing",
        "raise user.max_user_namespaces, and allow them in the kernel's configuration",
    ),
    Trial(
        "oom-protection",
        in_child("oom_protection"),
        "degraded",
        "give the node CAP_SYS_RESOURCE; without it the OOM killer may take a sandbox's PID 1 before its commands",
    ),
    Trial(
        "cgroups",
        _cgroups,
        "missing",
        "mount the cgroup hierarchies with memory, cpu and pids; on Debian for ARM boot with cgroup_enable=memory",
    ),
    Trial("seccomp", in_child("seccomp"), "missing", "use a kernel with CONFIG_SECCOMP_FILTER"),
    Trial(
        "landlock",
        in_child("landlock"),
        "degraded",
        "use a kernel with CONFIG_SECURITY_LANDLOCK, and add landlock to the lsm= boot option",
    ),
)
