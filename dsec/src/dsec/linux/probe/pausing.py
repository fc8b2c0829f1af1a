"""What pausing stands on: a process is frozen and goes on, and its memory goes to swap and comes back."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from ..cgroups import Cgroup, CgroupLimits, CgroupPool, Hierarchies
from ..reclaim import reclaim
from ..swap import areas_in_use
from ..swap.areas import memory_bytes
from .verdict import Degraded, Trial

_TIMEOUT_S = 10.0
_MIB = 1024 * 1024
_HELD = 8 * _MIB
_LEAST_SHARE = 0.1
"""Swap of less than this part of memory takes in few sandboxes."""
_HOLDER = f"""
import os, sys
held = os.urandom({_HELD})
for line in sys.stdin:
    print(len(held), flush=True)
"""


class _Holder:
    """A process in a group of its own that holds some memory and answers each line."""

    def __init__(self, group: Cgroup, process: subprocess.Popen[str]) -> None:
        self.group, self._process = group, process

    def ask(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def answer(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != str(_HELD):
            raise RuntimeError("a process that was paused did not go on")


@contextlib.contextmanager
def _holder() -> Iterator[_Holder]:
    pool = CgroupPool(f"dsec-probe-{os.getpid()}", Hierarchies.detect())
    try:
        group = pool.acquire(CgroupLimits())
        pipe = subprocess.PIPE
        try:
            with subprocess.Popen([sys.executable, "-c", _HOLDER], stdin=pipe, stdout=pipe, text=True) as process:
                try:
                    for path in group.paths:
                        with open(f"{path}/cgroup.procs", "w", encoding="ascii") as file:
                            file.write(str(process.pid))
                    holder = _Holder(group, process)
                    holder.ask()
                    holder.answer()
                    yield holder
                finally:
                    process.kill()
                    group.thaw()
        finally:
            pool.release(group)
    finally:
        pool.close()


def _freezer(_: str) -> str:
    with _holder() as holder:
        holder.group.freeze(_TIMEOUT_S)
        holder.ask()
        if not holder.group.frozen():
            raise RuntimeError("a process was frozen and did not stay so")
        holder.group.thaw()
        holder.answer()
        version = Hierarchies.detect().require("freezer").version
    return f"a process was frozen by cgroup v{version} and went on"


def _swap(_: str) -> str:
    found = areas_in_use()
    if not found:
        raise Degraded("there is no swap: a paused sandbox gives back its file pages, and nothing of its other memory")
    told = ", ".join(f"{area.path} ({area.bytes // _MIB} MiB, {area.used_bytes // _MIB} used)" for area in found)
    total, memory = sum(area.bytes for area in found), memory_bytes("MemTotal")
    if sum(area.bytes - area.used_bytes for area in found) < 2 * _HELD:
        raise Degraded(f"swap is full: {told}", "make more: `dsec node setup --swap-file PATH --swap-size SIZE`")
    with _holder() as holder:
        if not Hierarchies.detect().of("freezer"):
            raise Degraded(f"{told}; but nothing can be frozen here", "mount the freezer hierarchy, or cgroup v2")
        holder.group.freeze(_TIMEOUT_S)
        got = reclaim(holder.group, _TIMEOUT_S)
        holder.group.thaw()
        holder.ask()
        holder.answer()
    if got.resident_before - got.resident_after < _HELD // 2:
        raise Degraded(f"{told}; but a paused process that held {_HELD // _MIB} MiB gave nothing back")
    if total < _LEAST_SHARE * memory:
        raise Degraded(
            f"{told}: little beside {memory // _MIB} MiB of memory",
            "make more: `dsec node setup --swap-file PATH --swap-size SIZE`",
        )
    return f"{told}; {(got.resident_before - got.resident_after) // _MIB} MiB of a paused process went there and back"


TRIALS = (
    Trial(
        "freezer",
        _freezer,
        "degraded",
        "mount the freezer hierarchy below /sys/fs/cgroup, or cgroup v2; until then sandboxes cannot be paused",
    ),
    Trial(
        "swap", _swap, "degraded", "run `dsec node setup`: zram in memory, or a swap file for what does not compress"
    ),
)
