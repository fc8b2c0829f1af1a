"""What a bench says: figures, ratios, targets. Values and arithmetic, no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

Unit = Literal["ms", "1/s", "MB", "s"]


class Figure(msgspec.Struct, frozen=True):
    """One measured thing. `value` is what ratios are made of: the median of times, the rate, the memory of one."""

    value: float
    unit: Unit
    samples: int
    p99: float | None = None
    detail: dict[str, float] = {}
    """More of the same run, for the curious: `{"stop_ms": 1.2}`."""


class Machine(msgspec.Struct, frozen=True):
    cores: int
    memory_mb: int
    kernel: str
    distribution: str
    cgroup: str
    """Which version has the controllers."""
    processor: str
    date: str
    load: float
    """The load average of a minute before anything was measured: on a machine with other work figures say less."""


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON of `dsec bench NAME --json`."""

    name: str
    ours: Figure
    peers: dict[str, Figure | None]
    floor: Figure | None
    ratios: dict[str, float | None]
    machine: Machine
    notes: dict[str, str] = {}
    """Why a thing that is null could not be measured, where there is more to say than that it is not there."""


class Target(msgspec.Struct, frozen=True):
    """What ours is held to: a ratio to `against`, or with `against` None ours itself."""

    against: str | None
    bound: Literal["<=", ">="]
    value: float

    def holds(self, report: Report) -> bool | None:
        """None when the thing it is held against was not there to be measured."""
        reached = report.ours.value if self.against is None else report.ratios.get(self.against)
        if reached is None:
            return None
        return reached <= self.value if self.bound == "<=" else reached >= self.value


TARGETS: dict[str, tuple[Target, ...]] = {
    "create": (Target("crun", "<=", 0.6),),
    "lifecycle": (Target("floor", ">=", 0.5),),
    "exec": (Target("crun", "<=", 0.35),),
    "idle-memory": (Target(None, "<=", 0.8),),
    "fast-forward": (Target(None, ">=", 20_000.0),),
    "adoption": (Target(None, "<=", 5.0),),
    "log-cost": (
        Target("no_log", "<=", 1.1),
        Target("no_log_100kb", "<=", 1.1),
        Target("no_log_lifecycle", ">=", 0.9),
    ),
    "pause": (
        Target(None, "<=", 50.0),
        Target("resident_after", "<=", 0.3),
        Target("resident_after_zram", "<=", 0.1),
        Target("resident_after_files", "<=", 0.1),
    ),
    "layer-build": (Target("mkfs_erofs", "<=", 1.5),),
    "pack": (Target("docker_commit", "<=", 0.1),),
    "burst": (
        Target("skopeo_ready", "<=", 0.33),
        Target("skopeo_written", "<=", 0.2),
        Target("least_written", "<=", 0.2),
        Target("image_bytes", "<=", 0.2),
    ),
    "layers": (Target("tar_gz_ready", "<=", 0.1), Target("tar_gz_written", "<=", 0.02)),
}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("cannot take a percentile of nothing")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    if not values:
        raise ValueError("cannot take a median of nothing")
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def of_times(milliseconds: Sequence[float], detail: Mapping[str, float] | None = None) -> Figure:
    return Figure(median(milliseconds), "ms", len(milliseconds), percentile(milliseconds, 0.99), dict(detail or {}))


def of_rate(turns: int, seconds: float, detail: Mapping[str, float] | None = None) -> Figure:
    return Figure(turns / seconds, "1/s", turns, detail=dict(detail or {}))


def _ratio(ours: Figure, other: Figure | None) -> float | None:
    """None also where the other came to nothing: what is smaller than the noise is no measure."""
    return ours.value / other.value if other is not None and other.value > 0 else None


def report(
    name: str, machine: Machine, ours: Figure, peers: Mapping[str, Figure | None], floor: Figure | None
) -> Report:
    """The report with every ratio: ours divided by each peer and, where there is one, by the floor."""
    against = dict(peers) if floor is None else {**peers, "floor": floor}
    ratios = {key: _ratio(ours, figure) for key, figure in against.items()}
    return Report(name, ours, dict(peers), floor, ratios, machine)
