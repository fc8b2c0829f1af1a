"""What code inside a sandbox may not do, and what root inside must still be able to do."""

from __future__ import annotations

import pytest
from rig import Box, ForkServer


def ask(box: Box, *questions: str, user: str = "root") -> dict[str, str]:
    done = box.run("/opt/probe", *questions, user=user)
    assert done.code == 0, done
    return dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("user", ["root", "1000:1000"])
def test_system_calls_that_reach_out_are_refused(box: Box, user: str) -> None:
    refused = (
        "mount", "bind", "umount", "remount", "fsopen", "unshare-user", "unshare-mount", "clone-user", "setns-mount",
        "setns-net",
        "bpf", "userfaultfd", "perf", "io_uring", "keyctl", "add_key", "syslog", "reboot", "handle",
        "mknod",
    )  # fmt: skip
    answers = ask(box, *refused, user=user)
    assert answers == dict.fromkeys(refused, "EPERM")
    assert ask(box, "vsock", "alg", user=user) == {"vsock": "EAFNOSUPPORT", "alg": "EAFNOSUPPORT"}
    assert ask(box, "packet", user=user) == {"packet": "EPERM"}


def test_other_calling_conventions_are_no_way_around(box: Box) -> None:
    answers = ask(box, "i386-unshare", "i386-bpf", "i386-socketcall", "i386-getpid", "x32-getpid")
    assert answers == {
        "i386-unshare": "EPERM",
        "i386-bpf": "EPERM",
        "i386-socketcall": "ENOSYS",
        "i386-getpid": "0",
        "x32-getpid": "ENOSYS",
    }


@pytest.mark.parametrize("user", ["root", "1000:1000"])
def test_pid_1_is_out_of_reach(box: Box, user: str) -> None:
    secrets = ("environ", "maps", "mem", "auxv", "io", "stack", "syscall", "fd/0", "ns/mnt", "root/etc/passwd")
    answers = ask(box, *(f"read:/proc/1/{name}" for name in secrets), user=user)
    assert set(answers.values()) <= {"EACCES", "EPERM"}, answers
    assert box.sh("ls /proc/1/fd", user=user).code != 0
    assert ask(box, "ptrace-1", "vm-read-1", user=user) == {"ptrace-1": "EPERM", "vm-read-1": "EPERM"}
    assert ask(box, "kill-1", "stop-1", user=user) == {"kill-1": "EPERM", "stop-1": "EPERM"}
    assert ask(box, "write:/proc/1/oom_score_adj", user=user)["write:/proc/1/oom_score_adj"] in ("EACCES", "EPERM")
    assert box.run("/bin/true").code == 0


def test_settings_of_the_kernel_are_not_writable(box: Box) -> None:
    paths = (
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger",
        "/proc/sys/net/ipv4/ip_forward", "/sys/kernel/uevent_helper", "/sys/class/net/lo/mtu",
        "/sys/fs/cgroup/pids/pids.max",
    )  # fmt: skip
    answers = ask(box, *(f"write:{path}" for path in paths))
    assert set(answers.values()) <= {"EACCES", "EPERM", "EROFS", "ENOENT"}, answers


def test_a_command_cannot_put_itself_out_of_the_oom_killers_reach(box: Box) -> None:
    assert box.sh("cat /proc/self/oom_score_adj").stdout.strip() == str(box.plan["oom_score_adj"])
    assert box.sh("echo -1 >/proc/self/oom_score_adj").code != 0
    assert box.sh("echo 900 >/proc/self/oom_score_adj").code == 0


def test_root_inside_works_as_root_does(box: Box) -> None:
    assert box.sh("useradd -m -u 1500 agent && echo 'agent:secret' | chpasswd").code == 0
    assert box.sh("su agent -c 'id -un; echo mine >~/file'").stdout == "agent\n"
    assert box.sh("stat -c %u:%g /home/agent/file").stdout == "1500:1500\n"
    assert (
        box.sh(
            "chown 65534:12345 /home/agent/file && chmod 4711 /home/agent/file && stat -c %u:%a /home/agent/file"
        ).stdout
        == "65534:4711\n"
    )
    assert box.sh("mkfifo /tmp/pipe && ln -s x /tmp/link && mkdir -p /srv/a/b && rm -r /srv/a").code == 0
    assert box.sh("chroot / /bin/true").code == 0


def test_set_user_id_programs_change_ids(box: Box) -> None:
    box.sh("cp /usr/bin/id /usr/local/bin/rootid && chmod 4755 /usr/local/bin/rootid")
    assert "euid=0(root)" in box.run("/usr/local/bin/rootid", user="1000:1000").stdout
    # also straight from a layer, where the bit comes with shifted ids
    assert box.sh("stat -c %A /bin/su").stdout.startswith("-rws")


def test_low_ports_and_ping_are_open_to_all(box: Box) -> None:
    listen = "IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1:80') or die $!; print 1"
    assert box.run("/usr/bin/perl", "-MIO::Socket::INET", "-e", listen, user="1000:1000").stdout == "1"
    assert ask(box, "ping", "inet", user="1000:1000") == {"ping": "0", "inet": "0"}


def test_nested_user_namespaces_only_when_asked_for(server: ForkServer) -> None:
    nested = server.create(layers=["base", "probe"], nested_user_namespaces=True)
    assert ask(nested, "unshare-user", "bpf") == {"unshare-user": "0", "bpf": "EPERM"}
    done = nested.sh("unshare -Urm sh -c 'mount -t tmpfs none /mnt && id -u'", user="1000:1000")
    assert done.stdout == "0\n", done
    # the mounts that hide things are locked together with what they hide
    done = nested.sh("unshare -Urm sh -c 'umount /proc/sys || umount /proc/keys'")
    assert done.code != 0
    nested.close()


def test_reading_everything_harms_nothing(box: Box) -> None:
    assert box.sh("find / -xdev -type f -size -200k -exec cat {} + >/dev/null").code == 0
    box.sh("for tree in /proc /sys; do timeout 4 grep -rqs nothing-has-this $tree; done")
    assert box.run("/bin/true").code == 0
