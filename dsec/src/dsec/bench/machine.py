"""What machine a figure was measured on."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path

from .figures import Machine


def memory_kb(name: str, file: Path = Path("/proc/meminfo"), missing: int | None = None) -> int:
    """One line of /proc/meminfo or of a process's status, in kilobytes.

    :raises KeyError: no such line, unless `missing` says what it stands for (a kernel thread has no memory).
    """
    for line in file.read_text().splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0])
    if missing is None:
        raise KeyError(name)
    return missing


def _cgroup(root: Path = Path("/sys/fs/cgroup")) -> str:
    if (root / "cgroup.controllers").exists():
        return "v2"
    unified = root / "unified" / "cgroup.controllers"
    if not unified.exists():
        return "v1"
    return "hybrid, memory on " + ("v2" if "memory" in unified.read_text().split() else "v1")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def machine(load: float) -> Machine:
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_mb=memory_kb("MemTotal") // 1024,
        kernel=platform.release(),
        distribution=platform.freedesktop_os_release().get("PRETTY_NAME", "unknown"),
        cgroup=_cgroup(),
        processor=_processor(),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        load=load,
    )
