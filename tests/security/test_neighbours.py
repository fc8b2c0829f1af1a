"""Two sandboxes of one node: neither sees, reaches or slows the other (kinds 17, 18, 27)."""

from __future__ import annotations

import pytest
from inside import Create, python

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap")


def test_no_socket_segment_or_process_is_shared(create: Create) -> None:
    one, other = create(), create()
    listen = """
import time
names = [(socket.AF_UNIX, "\\0meet"), (socket.AF_INET, ("127.0.0.1", 7070))]
held = [socket.socket(family) for family, _ in names]
for end, (_, name) in zip(held, names):
    end.bind(name); end.listen()
libc.shmget(7, 4096, 0o1666)
os.mkfifo("/dev/shm/meet")
print("ready", flush=True); time.sleep(60)
"""
    ask = """
def reached(family, name):
    try:
        socket.socket(family).connect(name); return True
    except OSError:
        return False
print(reached(socket.AF_UNIX, "\\0meet"), reached(socket.AF_INET, ("127.0.0.1", 7070)), libc.shmget(7, 4096, 0) >= 0,
      os.path.exists("/dev/shm/meet"))
"""
    import_all = "import ctypes, os, socket\nlibc = ctypes.CDLL(None)\n"
    with one.exec_stream(["python3", "-c", import_all + listen], timeout=60) as holder:
        assert holder.stdout.read() == b"ready\n"
        assert python(one, ask).stdout.split() == ["True"] * 4
        assert python(other, ask).stdout.split() == ["False"] * 4
        holder.kill()


def test_no_packet_leaves_and_no_interface_can_be_made(create: Create) -> None:
    done = python(
        create(),
        """
def way(family, address, kind=socket.SOCK_DGRAM):
    try:
        socket.socket(family, kind).sendto(b"x", address)
    except OSError as error:
        return errno.errorcode[error.errno]
addresses = [(2, ("1.1.1.1", 53)), (2, ("169.254.169.254", 80)), (2, ("255.255.255.255", 67))]
addresses += [(10, (name, 53)) for name in ("2606:4700::1", "ff02::1", "fe80::1")]
print(*[way(*address) for address in addresses])
print(*{line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]})
print(call(41, 17, 3, 0), call(41, 2, 3, 255))
""",
    )
    ways, interfaces, raw = done.stdout.splitlines()
    assert set(ways.split()) <= {"ENETUNREACH", "EADDRNOTAVAIL", "EACCES", "EINVAL", "EPERM"}, ways
    assert interfaces == "lo"
    assert raw == "EPERM EPERM"


def test_a_sandbox_sees_its_own_groups_and_processes(create: Create) -> None:
    one, other = create(), create()
    assert one.id not in other.run_shell("cat /proc/self/cgroup /proc/self/mounts; ls -R /sys/fs/cgroup").stdout
    assert other.run_shell("ls /sys/fs/cgroup/memory | grep -c '^s[0-9]'").stdout.strip() in ("0", "")
    assert not other.run_shell("mkdir /sys/fs/cgroup/memory/x || echo 0 >/sys/fs/cgroup/memory/cgroup.procs").ok
