"""Paths that hang, swap, loop or never end, given to file operations."""

from __future__ import annotations

import stat
import tarfile
import time
from pathlib import Path

import pytest
from inside import python

from libdsec.errors import DSecError, FileOperationError, InvalidArgumentError
from libdsec.sync import Sandbox

pytestmark = pytest.mark.needs("root", "erofs", "overlay", "aether", "mmdebstrap")


def test_a_tree_whose_paths_are_swapped_never_leads_out(sandbox: Sandbox, tmp_path: Path) -> None:
    """A directory and a link to /etc change places all the time: no listing or archive shows what /etc holds, and what
    changes its kind meanwhile does not fail them."""
    sandbox.run_shell("mkdir -p /r/d; echo inside >/r/d/f; ln -s /etc /r/l")
    swap = "import ctypes\nlibc = ctypes.CDLL(None)\nwhile True: libc.renameat2(-100, b'/r/d', -100, b'/r/l', 2)"
    with sandbox.exec_stream(["python3", "-c", swap], timeout=30) as swapping:
        for _ in range(60):
            sandbox.files.archive("/r", tmp_path / "r.tar")
            with tarfile.open(tmp_path / "r.tar") as archive:
                assert {Path(name).name for name in archive.getnames()} <= {"", "r", ".", "d", "l", "f"}
            listed = sandbox.files.list("/r", recursive=True)
            assert {Path(entry.path).name for entry in listed} <= {"d", "l", "f"}
        swapping.kill()


def test_names_of_any_bytes_and_links_that_lead_out(sandbox: Sandbox, tmp_path: Path) -> None:
    source = r"""
os.makedirs(b"/h/\xff\xfe")
open(b"/h/\xff\xfe/a\nb\x1b[31m", "w").write("x")
open("/h/tool", "w"); os.chmod("/h/tool", 0o6777)
os.symlink("/etc/passwd", "/h/absolute"); os.symlink("../../../etc/passwd", "/h/up"); os.mkfifo("/h/pipe")
"""
    assert python(sandbox, source).ok
    assert len(sandbox.files.list("/h", recursive=True)) == 6
    transfer = sandbox.files.download("/h", tmp_path / "h")
    assert set(transfer.skipped_names) == {"absolute", "up", "pipe"}
    name = b"%s/h/\xff\xfe/a\nb\x1b[31m" % bytes(tmp_path)
    with open(name, "rb") as copied:
        assert copied.read() == b"x"
    assert stat.S_IMODE((tmp_path / "h" / "tool").stat().st_mode) == 0o755


def test_endless_and_strange_files_are_answered(sandbox: Sandbox) -> None:
    sandbox.run_shell(
        "ln -s loop /loop; truncate -s 4T /sparse; ln -s /proc/1/environ /environ; ln -s /proc/self/mem /mem"
    )
    for endless in ("/dev/zero", "/sparse"):
        with pytest.raises(InvalidArgumentError, match="more than"):
            sandbox.files.read(endless, limit=1 << 20)
    for path in ("/loop", "/environ", "/mem", "/dev/tty", "/proc/self/fd/3"):
        with pytest.raises(FileOperationError):
            sandbox.files.read(path)
    for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/hostname", "/sys/power/state", "/proc/self/mem", "/mem"):
        with pytest.raises(DSecError):
            sandbox.files.write(path, b"x")
    with pytest.raises(FileOperationError, match="no space"):
        sandbox.files.append("/dev/full", b"x")


def test_a_very_deep_tree_goes_with_its_sandbox(sandbox: Sandbox, node_environment: dict[str, str]) -> None:
    dig = 'os.chdir("/tmp")\nfor _ in range(12000): os.mkdir("d"); os.chdir("d")'
    assert python(sandbox, dig).ok
    for refused in (
        lambda: sandbox.files.list("/tmp", recursive=True),
        lambda: sandbox.files.remove("/tmp/d", recursive=True),
    ):
        with pytest.raises(FileOperationError):
            refused()
    assert sandbox.run(["true"]).ok
    assert sandbox.stop().state == "stopped"
    uppers = Path(node_environment["DSEC_STATE_DIR"]) / "uppers"
    deadline = time.monotonic() + 20
    while list(uppers.glob(f"*/{sandbox.id}*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(uppers.glob(f"*/{sandbox.id}*"))


def test_a_directory_that_is_gone_is_no_place_to_start(sandbox: Sandbox) -> None:
    for directory in ("/proc/1/root", "/proc/1/cwd", "/proc/self/fd/3", "/proc/self/fd/4", "/dev/fd/5"):
        with pytest.raises(DSecError):
            sandbox.run(["ls"], cwd=directory)
