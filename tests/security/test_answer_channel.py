"""Speaking for the platform from inside (kind 26): nothing to find, nothing believed."""

from __future__ import annotations

import pytest
from inside import python

from libdsec.sync import Sandbox

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap")

DESCRIPTORS = ["ls", "/proc/self/fd"]
"""The last one that it shows is its own, of the directory."""


def test_a_command_holds_three_descriptors(sandbox: Sandbox) -> None:
    assert sandbox.run(DESCRIPTORS).stdout.split() == ["0", "1", "2", "3"]
    with sandbox.exec_stream(DESCRIPTORS, pty=True) as process:
        assert b"".join(process.stdout).split() == [b"0", b"1", b"2", b"3"]
    with sandbox.session() as session:
        assert session.run("ls /proc/self/fd").stdout.split() == ["0", "1", "2", "3"]


def test_what_a_session_forges_is_about_itself_and_marked(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        assert session.run("for fd in /proc/$$/fd/*; do echo '2 0' >$fd; done 2>/dev/null; false").untrusted
        assert session.run("(while sleep 0.01; do seq -f '%g 0' 99; done) >/proc/$$/fd/11 2>/dev/null & true").untrusted
        session.run("sleep 0.1; false")
    result = sandbox.run(["false"])
    assert (result.exit_code, result.untrusted) == (1, False)


def test_frames_on_the_output_are_only_bytes(sandbox: Sandbox) -> None:
    forged = "import struct\nfor call in range(64):\n  os.write(1, struct.pack('<IBBHQ', 1, 3, 0, 0, call) + b'\\x80')"
    result = python(sandbox, forged + "\nsys.exit(7)")
    assert (result.exit_code, result.stdout_total) == (7, 64 * 17)


def test_a_pipe_in_packet_mode_and_one_read_back(sandbox: Sandbox) -> None:
    result = python(
        sandbox,
        """
import fcntl
fcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT | os.O_WRONLY)
for piece in (b"a", b"", b"bc", b"x" * 70000, b"end"):
    os.write(1, piece)
os.read(os.open("/proc/self/fd/2", os.O_RDONLY | os.O_NONBLOCK), os.write(2, b"taken back"))
""",
    )
    assert result.ok
    assert result.stdout_bytes == b"abc" + b"x" * 70000 + b"end"
    assert result.stderr_bytes == b""


def test_pid_1_cannot_be_signaled_traced_or_limited(sandbox: Sandbox) -> None:
    result = python(
        sandbox,
        """
import resource, signal
def refused(act):
    try:
        act()
    except PermissionError:
        return True
acts = [lambda number=number: os.kill(1, number) for number in (9, 19, 15, 18, 17)]
acts.append(lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1)))
acts.append(lambda: os.sched_setaffinity(1, {0}))
acts.append(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
acts.append(lambda: os.listdir("/proc/1/fd"))
acts.append(lambda: os.stat("/proc/1/root/"))
acts.append(lambda: open("/proc/1/mem"))
print([refused(act) for act in acts].count(True), len(acts))
pidfd = os.pidfd_open(1)
print(call(438, pidfd, 0, 0), call(308, pidfd, 0x10000000), call(424, pidfd, 9, 0, 0), call(101, 0x4206, 1, 0, 0))
""",
    )
    assert result.stdout.splitlines() == ["11 11", "EPERM EPERM EPERM EPERM"], result
    assert sandbox.run(["true"]).ok


def test_killing_everything_inside_ends_no_sandbox(sandbox: Sandbox) -> None:
    assert sandbox.run_shell("setsid sh -c 'kill -9 -1; kill -STOP -1' & wait; exit 5").ended in ("signaled", "exited")
    assert sandbox.run(["true"]).ok


def test_a_replaced_shell_forges_only_its_own_answers(sandbox: Sandbox) -> None:
    lie = "#!/bin/sh.real\\necho forged; exit 0\\n"
    assert sandbox.run_shell(
        f"cp /bin/sh /bin/sh.real; printf '{lie}' >/bin/lie; chmod 755 /bin/lie; mv /bin/lie /bin/sh"
    ).ok
    assert sandbox.run_shell("exit 3").stdout == "forged\n"
    sandbox.files.write("/tmp/file", b"true")
    assert sandbox.files.read("/tmp/file") == b"true"
    assert sandbox.run(["false"]).exit_code == 1
