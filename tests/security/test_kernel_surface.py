"""Ways to kernel code that no namespace confines (kind 27): refused as on a kernel without them."""

from __future__ import annotations

from pathlib import Path

import pytest
from inside import python

from libdsec.sync import Sandbox

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap")


def test_pairs_of_sockets_are_of_the_same_families_as_sockets(sandbox: Sandbox) -> None:
    """Each family is a driver, loaded by number for whoever asks: socketpair(2) was a way around."""
    done = python(
        sandbox,
        """
pair = (ctypes.c_int * 2)()
print(*{call(53, family, 1, 0, pair) for family in range(50) if family not in (1, 2, 10, 16, 17)})
print(call(53, 1, 1, 0, pair))
""",
    )
    assert done.stdout.split() == ["EAFNOSUPPORT", "0"], done


def test_a_terminal_keeps_its_line_discipline(sandbox: Sandbox) -> None:
    """Line disciplines are drivers of serial protocols, loaded by number."""
    done = python(
        sandbox,
        """
master, slave = os.openpty()
for number in (0, 1, 3, 13, 21, 27):
    print(call(16, master, 0x5423, ctypes.byref(ctypes.c_int(number))))
""",
    )
    assert set(done.stdout.split()) == {"EPERM"}, done


def test_the_hosts_devices_are_not_heard_of(sandbox: Sandbox) -> None:
    """The kernel tells of devices to every network namespace that the host's user namespace owns."""
    done = python(sandbox, "print(call(41, 16, 3, 15), call(41, 16, 3, 0))")
    assert done.stdout.split() == ["EAFNOSUPPORT", "0"], done


def test_settings_that_bound_memory_are_not_writable(sandbox: Sandbox) -> None:
    names = ("shmall", "shm_rmid_forced", "msgmni", "sem", "core_pattern")
    for name in names:
        if Path(f"/proc/sys/kernel/{name}").exists():
            assert not sandbox.run_shell(f"echo 1 >/proc/sys/kernel/{name}").ok, name


def test_nothing_of_proc_and_sys_can_be_written(sandbox: Sandbox) -> None:
    """Apart from what belongs to the writing process, and pressure triggers, which act on the writer alone."""
    done = sandbox.run_shell(
        "find /proc /sys -path '/proc/[0-9]*' -prune -o -path /proc/pressure -prune"
        " -o -type f -writable -print 2>/dev/null"
    )
    assert done.stdout == "", done
