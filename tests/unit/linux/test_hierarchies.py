"""Where the controllers are, read from mount tables of hosts of every kind."""

from pathlib import Path

import pytest

from dsec.linux.cgroups import Hierarchies
from libdsec.protocol.errors import UnsupportedOperationError

HYBRID = """\
24 1 0:21 / /proc rw - proc proc rw
30 25 0:26 / {root}/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / {root}/memory rw,nosuid shared:9 - cgroup cgroup rw,memory
32 25 0:28 / {root}/pids rw - cgroup cgroup rw,pids
36 25 0:31 / {root}/freezer rw - cgroup cgroup rw,freezer
33 25 0:29 / {root}/systemd rw - cgroup cgroup rw,xattr,name=systemd
34 25 0:30 / {root}/unified rw - cgroup2 cgroup2 rw,nsdelegate
"""
UNIFIED = "30 23 0:26 / {root} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"


def detect(tmp_path: Path, table: str) -> Hierarchies:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(table.format(root=tmp_path))
    return Hierarchies.detect(str(mountinfo))


def test_hybrid_controllers_are_found_in_their_v1_mounts(tmp_path: Path) -> None:
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("\n")
    found = detect(tmp_path, HYBRID)
    assert [(h.version, h.controllers) for h in found.all] == [
        (1, ("cpu",)),
        (1, ("memory",)),
        (1, ("pids",)),
        (1, ("freezer",)),
    ]
    memory = found.require("memory")
    assert memory.path == f"{tmp_path}/memory"


def test_hybrid_takes_from_v2_only_what_v1_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("memory pids\n")
    table = "\n".join(line for line in HYBRID.splitlines() if "/pids" not in line) + "\n"
    found = detect(tmp_path, table)
    assert found.require("memory").version == 1
    assert (found.require("pids").version, found.require("pids").controllers) == (2, ("pids",))


def test_unified_has_all_in_one(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma misc\n")
    found = detect(tmp_path, UNIFIED)
    assert [(h.path, h.version, h.controllers) for h in found.all] == [
        (str(tmp_path), 2, ("memory", "cpu", "pids", "freezer"))
    ]
    assert found.all[0].handed_down == ("memory", "cpu", "pids")


def test_without_the_v1_freezer_the_second_version_freezes(tmp_path: Path) -> None:
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("\n")
    table = "\n".join(line for line in HYBRID.splitlines() if "/freezer" not in line) + "\n"
    freezer = detect(tmp_path, table).require("freezer")
    assert (freezer.version, freezer.controllers, freezer.handed_down) == (2, ("freezer",), ())


def test_a_path_with_a_space_is_unescaped(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "cgroup.controllers").write_text("memory\n")
    found = detect(tmp_path, "30 23 0:26 / {root}/a\\040b rw - cgroup2 cgroup2 rw\n")
    assert found.require("memory").path == f"{tmp_path}/a b"


def test_a_missing_controller_is_an_error_that_names_it(tmp_path: Path) -> None:
    found = detect(tmp_path, "24 1 0:21 / /proc rw - proc proc rw\n")
    assert found.all == ()
    with pytest.raises(UnsupportedOperationError, match="memory") as caught:
        found.require("memory")
    assert caught.value.details["controller"] == "memory"
