"""What a sandbox sees: its own namespaces, ids, mounts, devices and limits, and nothing of the host."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from rig import HIDDEN, PROTECTED, V1, Box, ForkServer, remove_cgroup

UNIFIED = V1 / "unified"
KINDS = ("mnt", "pid", "net", "ipc", "uts", "cgroup")


def namespaces(pid: int | str) -> dict[str, str]:
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in (*KINDS, "user")}


def test_every_namespace_is_its_own(server: ForkServer, box: Box) -> None:
    host, first = namespaces("self"), namespaces(box.pid)
    other = server.create()
    second = namespaces(other.pid)
    other.close()
    for kind in KINDS:
        assert len({host[kind], first[kind], second[kind]}) == 3, kind
    assert first["user"] == host["user"]
    inside = box.sh("readlink /proc/self/ns/user").stdout.strip()
    assert inside not in (host["user"], "")


def test_ids_are_mapped_to_the_range(box: Box) -> None:
    assert (
        box.sh("cat /proc/self/uid_map /proc/self/gid_map").stdout.split()
        == ["0", str(box.plan["id_base"]), "65536"] * 2
    )
    assert box.run("/usr/bin/id").stdout.startswith("uid=0(root) gid=0(root)")
    assert box.sh("stat -c %u:%g /etc/passwd /bin/su / /usr/bin/env").stdout.split() == ["0:0"] * 4
    box.sh("touch /root/mine && chown 1234:4321 /root/mine")
    upper = Path(box.plan["upper"])
    assert upper.joinpath("root/mine").stat().st_uid == box.plan["id_base"] + 1234
    assert upper.joinpath("root/mine").stat().st_gid == box.plan["id_base"] + 4321


def test_pid_1_is_the_keeper_without_any_power(box: Box) -> None:
    status = Path(f"/proc/{box.pid}/status").read_text()
    field = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert field["Uid"].split() == [str(box.plan["keeper"])] * 4
    assert field["Gid"].split() == [str(box.plan["keeper"])] * 4
    assert field["Groups"].strip() == ""
    assert all(int(field[name], 16) == 0 for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"))
    assert field["Seccomp"] == "2"
    assert field["NoNewPrivs"] == "0"  # set-user-ID programs inside must work
    assert field["NSpid"].split()[-1] == "1"


def test_pid_1_tells_no_path_of_the_host(box: Box) -> None:
    assert box.sh("cat /proc/1/cmdline").stdout == "aether init\0"
    assert box.sh("cat /proc/1/comm").stdout == "aether-init\n"
    assert box.sh("cat /proc/1/environ").code != 0


def open_files(pid: int) -> list[str]:
    return [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]


def test_pid_1_holds_nothing_of_the_fork_server(server: ForkServer, box: Box) -> None:
    held = open_files(box.pid)
    assert not [path for path in held if str(server.directory) in path or path.startswith("/dev/pts/")]
    # the edge's end of this or another sandbox's channel would keep it alive
    sockets = [path for path in held if path.startswith("socket:")]
    assert len(sockets) == 1, held


def test_no_mount_of_the_host_shows(box: Box) -> None:
    mounts = box.sh("cat /proc/self/mountinfo").stdout
    points = {line.split()[4]: line for line in mounts.splitlines()}
    expected = {"/", "/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/sys/fs/cgroup"}
    assert expected <= set(points)
    for point, line in points.items():
        kind, own = line.split(" - ")[1].split()[0], point in expected
        assert own or kind in ("tmpfs", "proc", "cgroup") or point in PROTECTED, line
        assert kind not in ("ext4", "xfs", "btrfs", "devtmpfs", "erofs"), line
    # nothing is shared with the host, in either direction
    assert not re.search(r"shared:|master:", mounts)
    host = Path("/proc/self/mountinfo").read_text()
    assert str(box.server.root) not in host
    assert "nodev" in points["/"]
    assert "nosuid" not in points["/"].split(" - ")[0]
    assert points["/sys"].split()[5].startswith("ro,")


def test_hidden_paths_are_empty_and_protected_ones_read_only(box: Box) -> None:
    for path in HIDDEN:
        found = box.sh(f"if [ -d {path} ]; then ls -A {path}; elif [ -e {path} ]; then cat {path}; fi")
        assert (found.stdout, found.code) == ("", 0), path
    for path in PROTECTED:
        assert f" {path} ro," in box.sh("cat /proc/self/mountinfo").stdout


def test_devices_are_the_usual_ones(box: Box) -> None:
    assert box.sh("cd /dev && ls").stdout.split() == sorted(
        ["fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"]
    )
    script = "echo x >/dev/null && head -c4 /dev/zero | wc -c && head -c4 /dev/urandom | wc -c && ! echo x >/dev/full"
    done = box.sh(script)
    assert (done.code, done.stdout.split()) == (0, ["4", "4"])


def test_a_user_opens_terminals_and_shared_memory(box: Box) -> None:
    opened = box.sh("script -qec 'stat -c %n:%U:%G:%a $(tty)' /dev/null", user="65534")
    assert opened.stdout.strip() == "/dev/pts/0:nobody:tty:620", opened
    done = box.sh(
        "echo hi >/dev/shm/x && cat /dev/shm/x && rm /dev/shm/x && df --output=size /dev/shm | tail -1", user="65534"
    )
    assert done.stdout.split() == ["hi", str((16 << 20) // 1024)]


def test_its_own_limits_show(box: Box) -> None:
    assert box.run("/usr/bin/nproc").stdout == "1\n"
    assert box.sh("grep -c ^processor /proc/cpuinfo").stdout == "1\n"
    assert box.sh("cat /sys/devices/system/cpu/online").stdout == "1\n"
    assert box.sh("getconf _NPROCESSORS_ONLN").stdout == "1\n"
    meminfo = dict(re.findall(r"(\w+): +(\d+) kB", box.sh("cat /proc/meminfo").stdout))
    assert int(meminfo["MemTotal"]) == (256 << 20) // 1024
    assert int(meminfo["MemAvailable"]) <= int(meminfo["MemTotal"])


def test_its_own_control_groups_show_read_only(box: Box) -> None:
    assert box.sh("cat /proc/1/cgroup").stdout.count(":/\n") > 0
    memory = Path(box.plan["memory_cgroup"])
    memory.joinpath("memory.limit_in_bytes").write_text(str(300 << 20))
    assert box.sh("cat /sys/fs/cgroup/memory/memory.limit_in_bytes").stdout == f"{300 << 20}\n"
    assert box.sh("ls /sys/fs/cgroup").stdout.split() == ["memory", "pids"]
    assert box.sh("echo 1 >/sys/fs/cgroup/memory/memory.limit_in_bytes").code != 0
    assert box.sh("mkdir /sys/fs/cgroup/memory/more").code != 0


@pytest.mark.skipif(not UNIFIED.is_dir(), reason="no second hierarchy beside the first")
def test_on_the_second_hierarchy_pid_1_leaves_the_group_to_its_commands(server: ForkServer) -> None:
    group = UNIFIED / f"aether-test-{os.getpid()}"
    group.mkdir()
    try:
        box = server.create(cgroups=[str(group)], memory_cgroup=str(group), pids_cgroup=None, cgroup_version=2)
        assert Path(f"/proc/{box.pid}/cgroup").read_text().splitlines()[-1].endswith(f"/{group.name}/init")
        assert group.joinpath("cgroup.procs").read_text() == ""
        for name in ("", "cgroup.procs", "cgroup.subtree_control"):
            assert group.joinpath(name).stat().st_uid == box.plan["keeper"]
        box.close()
    finally:
        remove_cgroup(group)


def test_the_host_name_is_its_own(box: Box) -> None:
    assert box.sh("cat /proc/sys/kernel/hostname").stdout == "cottage\n"


def test_the_network_is_loopback_alone(box: Box) -> None:
    lines = box.sh("cat /proc/net/dev").stdout.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]
    assert box.sh("cat /sys/class/net/lo/operstate; cat /sys/class/net/lo/flags").stdout.split()[1] == "0x9"
    assert box.sh("cat /proc/net/route").stdout.count("\n") == 1


def test_without_limits_the_machine_shows(server: ForkServer) -> None:
    plain = server.create()
    assert plain.run("/usr/bin/nproc").stdout.strip() == str(len(os.sched_getaffinity(0)))
    assert "/proc/meminfo" not in plain.sh("cat /proc/self/mountinfo").stdout
    plain.close()
