"""Ratios, percentiles, targets, and the JSON that `dsec bench NAME --json` promises."""

from __future__ import annotations

import msgspec
import pytest

from dsec.bench.figures import TARGETS, Figure, Machine, Report, median, of_rate, of_times, percentile, report
from dsec.bench.run import BENCHES

MACHINE = Machine(2, 24000, "6.18", "Debian", "v2", "a processor", "2026-01-02", 0.1)


def test_every_ratio_is_ours_divided_by_the_named_thing() -> None:
    peers = {"crun": Figure(10.0, "ms", 5), "runc": Figure(20.0, "ms", 5), "docker": None}
    made = report("create", MACHINE, Figure(5.0, "ms", 9), peers, Figure(2.0, "ms", 9))
    assert made.ratios == {"crun": 0.5, "runc": 0.25, "docker": None, "floor": 2.5}


def test_a_bench_without_a_floor_lists_none() -> None:
    made = report("layer-build", MACHINE, Figure(1.5, "s", 3), {"mkfs_erofs": Figure(1.0, "s", 3)}, None)
    assert made.ratios == {"mkfs_erofs": 1.5}
    assert made.floor is None


def test_the_json_has_the_agreed_keys_and_no_other() -> None:
    made = report("exec", MACHINE, of_times([1.0, 2.0, 3.0]), {"crun": None}, of_times([0.5]))
    keys = msgspec.json.decode(msgspec.json.encode(made))
    assert list(keys) == ["name", "ours", "peers", "floor", "ratios", "machine"]
    assert keys["peers"] == {"crun": None}
    assert keys["ratios"] == {"crun": None, "floor": 4.0}
    assert msgspec.json.decode(msgspec.json.encode(made), type=Report) == made


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0], 0.99, 1.0), (list(range(1, 101)), 0.99, 99), ([4.0, 1.0], 0.0, 1.0)],
)
def test_percentile_is_the_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5


def test_nothing_has_no_median() -> None:
    with pytest.raises(ValueError, match="nothing"):
        median([])
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)


def test_a_rate_is_turns_over_seconds() -> None:
    assert of_rate(320, 2.0) == Figure(160.0, "1/s", 320)


@pytest.mark.parametrize(
    ("name", "ours", "peer", "holds"),
    [
        ("create", 5.9, ("crun", 10.0), True),
        ("create", 6.1, ("crun", 10.0), False),
        ("lifecycle", 170.0, ("floor", 336.0), True),
        ("lifecycle", 160.0, ("floor", 336.0), False),
        ("exec", 1.0, ("crun", 2.0), False),
        ("idle-memory", 0.79, ("floor", 0.47), True),
        ("idle-memory", 0.81, ("floor", 0.47), False),
        ("layer-build", 1.4, ("mkfs_erofs", 1.0), True),
        ("create", 5.9, ("crun", None), None),
    ],
)
def test_targets(name: str, ours: float, peer: tuple[str, float | None], holds: bool | None) -> None:
    figure = None if peer[1] is None else Figure(peer[1], "ms", 1)
    floor = figure if peer[0] == "floor" else None
    peers = {} if peer[0] == "floor" else {peer[0]: figure}
    made = report(name, MACHINE, Figure(ours, "ms", 1), peers, floor)
    assert TARGETS[name][0].holds(made) is holds


def test_every_bench_has_a_target() -> None:
    assert set(BENCHES) == set(TARGETS)


def test_what_came_to_nothing_is_no_measure() -> None:
    nothing = Figure(0.0, "MB", 3)
    made = report("idle-memory", MACHINE, Figure(0.4, "MB", 3), {"peer": nothing, "absent": None}, nothing)
    assert made.ratios == {"peer": None, "absent": None, "floor": None}
