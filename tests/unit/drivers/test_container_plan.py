"""The plan is pure data."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dsec.drivers.base import Order, Slot
from dsec.drivers.container.plan import CgroupPlace, choose_cpus, exposed, make_plan
from libdsec.protocol.spec import MIB, Limits, SandboxSpec

CGROUP = CgroupPlace(("/c/memory/s1", "/c/pids/s1"), "/c/memory/s1", "/c/pids/s1", 1)
FIELDS = {
    *("id", "layers", "upper", "work", "root", "id_base", "keeper", "cgroups", "memory_cgroup", "pids_cgroup"),
    *("cgroup_version", "hostname", "cpus", "memory_bytes", "shm_bytes", "masked", "readonly"),
    *("nested_user_namespaces", "host_network", "oom_score_adj"),
}


def order(**limits: object) -> Order:
    return Order(
        id="s" * 24,
        spec=SandboxSpec("tiny:1", nested_user_namespaces=True),
        layers=("sha256:a", "sha256:b"),
        slot=Slot(3, 0x7004_0000, 0x7000_0003),
        limits=Limits(**limits),  # type: ignore[arg-type]
        hostname="box",
        timeout_s=1.0,
    )


def plan(made: Order, shm_bytes: int = 64 * MIB) -> dict[str, object]:
    made_plan = make_plan(
        made,
        upper="/u/upper",
        work="/u/work",
        root="/r",
        cgroup=CGROUP,
        allowed_cpus=(0, 1, 2, 3),
        shm_bytes=shm_bytes,
        masked=("/proc/keys",),
        readonly=("/proc/sys",),
    )
    decoded: dict[str, object] = msgspec.msgpack.decode(msgspec.msgpack.encode(made_plan))
    return decoded


def test_every_field_of_the_contract_is_there() -> None:
    sent = plan(order(memory_bytes=128 * MIB, pids=10))
    assert set(sent) == FIELDS
    assert sent["layers"] == ["sha256:a", "sha256:b"]
    assert (sent["id_base"], sent["keeper"], sent["hostname"]) == (0x7004_0000, 0x7000_0003, "box")
    assert (sent["memory_cgroup"], sent["cgroup_version"]) == ("/c/memory/s1", 1)
    assert sent["nested_user_namespaces"] is True
    assert sent["cpus"] == []


def test_shared_memory_is_no_larger_than_memory() -> None:
    assert plan(order(memory_bytes=16 * MIB))["shm_bytes"] == 4 * MIB
    assert plan(order(memory_bytes=512 * MIB))["shm_bytes"] == 64 * MIB


@pytest.mark.parametrize(
    ("cores", "index", "cpus"),
    [
        (None, 0, ()),
        (4, 0, ()),
        (8, 0, ()),
        (0.5, 0, (0,)),
        (1, 1, (1,)),
        (1.5, 1, (2, 3)),
        (2, 3, (2, 3)),
        (3, 1, (0, 1, 3)),
    ],
)
def test_a_sandbox_sees_its_cores_rounded_up(cores: float | None, index: int, cpus: tuple[int, ...]) -> None:
    assert choose_cpus(cores, (0, 1, 2, 3), index) == cpus


def test_only_what_others_could_read_is_masked(tmp_path: Path) -> None:
    for name, mode in (("open", 0o444), ("shut", 0o400)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
        (tmp_path / f"{name}-dir").mkdir()
        (tmp_path / f"{name}-dir" / "file").touch()
        (tmp_path / f"{name}-dir").chmod(mode | 0o111 if name == "open" else 0o700)
    (tmp_path / "empty").mkdir()
    names = ("open", "shut", "open-dir", "shut-dir", "empty", "missing")
    found = exposed([str(tmp_path / name) for name in names])
    assert found == (str(tmp_path / "open"), str(tmp_path / "open-dir"))
