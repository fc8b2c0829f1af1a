"""Trials that change the process which makes them, run as a program: `python -m dsec.linux.probe.trials NAME DIR`.

The process ends with 0 and one line of what it saw, or with 1 and one line of what went wrong. Namespaces, mounts and
filters end with it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Callable

from .. import mounts, syscalls
from ..specimen import empty_erofs
from ..syscalls import KernelError
from . import on_demand

_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_KINDS = {
    "mnt": _NEWNS,
    "uts": _NEWUTS,
    "ipc": _NEWIPC,
    "pid": _NEWPID,
    "net": _NEWNET,
    "cgroup": _NEWCGROUP,
}
_ID_BASE = 0x7000_0000
_RANGE = 65_536
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_GETPPID = {"x86_64": 110, "aarch64": 173}

_libc = ctypes.CDLL(None, use_errno=True)


def namespaces(_: str) -> str:
    for name, flag in _KINDS.items():
        try:
            syscalls.unshare(flag)
        except KernelError as error:
            raise RuntimeError(f"{name}: {error}") from None
    return f"{', '.join(_KINDS)} can be made"


def user_namespace(_: str) -> str:
    os.close(_make_user_namespace())
    return f"one with {_RANGE} ids from {_ID_BASE} can be made"


def overlay_idmapped(directory: str) -> str:
    """As a sandbox's root is made: an EROFS lower with shifted ids below a plain upper."""
    syscalls.unshare(_NEWNS)
    syscalls.make_mounts_private()
    paths = {name: os.path.join(directory, name) for name in ("image", "lower", "upper", "work", "merged")}
    with open(paths["image"], "wb") as file:
        file.write(empty_erofs())
    for name in ("lower", "upper", "work", "merged"):
        os.mkdir(paths[name], 0o755)
    layer = mounts.mount_erofs(paths["image"], None)
    user_namespace = _make_user_namespace()
    mounts.idmap(layer, user_namespace, "an EROFS mount")
    mounts.attach(layer, paths["lower"])
    os.chown(paths["upper"], _ID_BASE, _ID_BASE)
    options = [("lowerdir", paths["lower"]), ("upperdir", paths["upper"]), ("workdir", paths["work"])]
    options += [("redirect_dir", "off"), ("metacopy", "off"), ("xino", "on")]
    overlay = mounts.mount_detached("overlay", options, ["volatile"], 0, "an overlay over it")
    mounts.attach(overlay, paths["merged"])
    with open(os.path.join(paths["merged"], "file"), "w") as file:
        file.write("written through the overlay")
    owner = os.stat(paths["lower"]).st_uid
    if owner != _ID_BASE:
        raise RuntimeError(f"the lower's root belongs to {owner} after shifting, not to {_ID_BASE}")
    return "an overlay over an EROFS layer with shifted ids can be written"


def oom_protection(_: str) -> str:
    """As PID 1 of a sandbox is kept from the OOM killer."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("-1000")
    return "a process was kept from the OOM killer"


def seccomp(_: str) -> str:
    number = _GETPPID.get(platform.machine())
    if number is None:
        raise RuntimeError(f"no filter is known for {platform.machine()}")
    load, jump_equal, give = 0x20, 0x15, 0x06
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (load, 0, 0, 0),
            (jump_equal, 0, 1, number),
            (give, 0, 0, 0x0005_0000 | 42),
            (give, 0, 0, 0x7FFF_0000),
        )
    )
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    _prctl("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)
    _prctl("install a filter", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(header, len(header)))
    if _libc.syscall(ctypes.c_long(number)) != -1 or ctypes.get_errno() != 42:
        raise RuntimeError("an installed filter did not answer")
    return "a filter was installed and answered for a system call"


def landlock(_: str) -> str:
    create, restrict = 444, 446
    abi = _libc.syscall(ctypes.c_long(create), None, ctypes.c_long(0), ctypes.c_long(1))
    if abi < 1:
        raise KernelError(ctypes.get_errno(), "landlock_create_ruleset", "version")
    read_file = ctypes.create_string_buffer(struct.pack("=Q", 1 << 2), 8)
    rules = _libc.syscall(ctypes.c_long(create), read_file, ctypes.c_long(8), ctypes.c_long(0))
    _prctl("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)
    if rules < 0 or _libc.syscall(ctypes.c_long(restrict), ctypes.c_long(rules), ctypes.c_long(0)) < 0:
        raise KernelError(ctypes.get_errno(), "landlock_restrict_self", "reading files")
    try:
        os.close(os.open("/proc/self/status", os.O_RDONLY))
    except PermissionError:
        return f"a rule set was enforced (ABI {abi})"
    raise RuntimeError("a rule set was accepted and not enforced")


def pre_content(directory: str) -> str:
    syscalls.unshare(_NEWNS)
    syscalls.make_mounts_private()
    return on_demand.pre_content(directory)


def _make_user_namespace() -> int:
    """A descriptor of a user namespace with one range of ids; the child that made it is gone."""
    ready_read, ready_write = os.pipe()
    hold_read, hold_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold_write)
        try:
            syscalls.unshare(_NEWUSER)
        except KernelError as error:
            os.write(ready_write, str(error).encode())
            os._exit(1)
        os.write(ready_write, b"ready")
        os.read(hold_read, 1)
        os._exit(0)
    try:
        said = os.read(ready_read, 1000)
        if said != b"ready":
            raise RuntimeError(said.decode("utf-8", "replace"))
        for kind in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{kind}", "w") as file:
                file.write(f"0 {_ID_BASE} {_RANGE}")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (ready_read, ready_write, hold_read, hold_write):
            os.close(descriptor)
        os.waitpid(child, 0)


def _prctl(what: str, option: int, first: int, second: object = None) -> None:
    if _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(first), second, None, None) < 0:
        raise KernelError(ctypes.get_errno(), "prctl", what)


TRIALS: dict[str, Callable[[str], str]] = {
    trial.__name__: trial
    for trial in (namespaces, user_namespace, oom_protection, overlay_idmapped, seccomp, landlock, pre_content)
}


def main() -> int:
    try:
        sys.stdout.write(TRIALS[sys.argv[1]](sys.argv[2]) + "\n")
    except Exception as error:
        sys.stdout.write((str(error) or type(error).__name__) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
