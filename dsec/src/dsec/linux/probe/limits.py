"""What bounds the number of sandboxes, and devices that not every machine has."""

from __future__ import annotations

import fcntl
import os
import resource

from .verdict import Degraded, Trial

_SANDBOXES = 3200
"""What a node of 24 GB is meant to hold."""


def _number(path: str) -> int:
    with open(f"/proc/sys/{path}", encoding="ascii") as file:
        return int(file.read().split()[0])


def _at_least(path: str, wanted: int, name: str) -> str:
    value = _number(path)
    if value < wanted:
        raise Degraded(
            f"{name} is {value}: too low for {_SANDBOXES} sandboxes at once",
            f"sysctl {path.replace('/', '.')}={wanted} (and keep it in /etc/sysctl.d)",
        )
    return f"{name} is {value}"


def _pids(_: str) -> str:
    """PID 1, a command and its helpers in each."""
    first = _at_least("kernel/pid_max", 10 * _SANDBOXES, "the highest pid")
    return f"{first}, {_at_least('kernel/threads-max', 10 * _SANDBOXES, 'the number of threads')}"


def _descriptors(_: str) -> str:
    """The edge keeps two a sandbox, the fork server as many."""
    wanted = 4 * _SANDBOXES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Degraded(
            f"this process may open {hard} files, too few for {_SANDBOXES} sandboxes",
            f"raise the limit of the service (LimitNOFILE={wanted})",
        )
    return f"{soft} files now, {hard} at most; {_at_least('fs/file-max', 64 * _SANDBOXES, 'the machine')}"


def _inotify(_: str) -> str:
    """These are counted for each user, and every sandbox has one of its own."""
    first = _at_least("fs/inotify/max_user_instances", 64, "the number of inotify instances a user")
    return f"{first}, {_at_least('fs/inotify/max_user_watches', 8192, 'of watches')}"


def _namespaces(_: str) -> str:
    kinds = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
    for kind in kinds:
        _at_least(f"user/max_{kind}_namespaces", 2 * _SANDBOXES, f"the number of {kind} namespaces")
    least = min(_number(f"user/max_{kind}_namespaces") for kind in kinds)
    return f"{least} namespaces of every kind are allowed"


def _mounts(_: str) -> str:
    return _at_least("fs/mount-max", 10_000, "the number of mounts a namespace")


def _zram(_: str) -> str:
    """Ask the kernel for a device and give it back."""
    try:
        with open("/sys/class/zram-control/hot_add", encoding="ascii") as file:
            number = file.read().strip()
    except OSError as error:
        raise RuntimeError(f"cannot make a zram device: {error.strerror}") from None
    with open("/sys/class/zram-control/hot_remove", "w", encoding="ascii") as file:
        file.write(number)
    return f"zram{number} was made and given back"


def _kvm(_: str) -> str:
    get_api_version, create_vm = 0xAE00, 0xAE01
    device = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    try:
        version = fcntl.ioctl(device, get_api_version)
        os.close(fcntl.ioctl(device, create_vm, 0))
    finally:
        os.close(device)
    raise Degraded(
        f"a machine can be made (API {version}); not probed by boot yet, and a device alone promises no running guest",
        "nothing to do: containers need no KVM",
    )


TRIALS = (
    Trial("pid-limits", _pids, "degraded", "mount /proc with /proc/sys"),
    Trial("descriptor-limits", _descriptors, "degraded", "mount /proc with /proc/sys"),
    Trial("inotify-limits", _inotify, "degraded", "use a kernel with CONFIG_INOTIFY_USER"),
    Trial("namespace-limits", _namespaces, "degraded", "mount /proc with /proc/sys"),
    Trial("mount-limits", _mounts, "degraded", "mount /proc with /proc/sys"),
    Trial("zram", _zram, "degraded", "load the module zram"),
    Trial(
        "kvm",
        _kvm,
        "degraded",
        "enable virtualisation, or nested virtualisation in a machine: only VM backends need it",
    ),
)
