"""What a test needs of the machine, and what it must leave behind: nothing.

`@pytest.mark.needs("root", "erofs", ...)` names the needs of a test. A missing need skips it, unless DSEC_TEST_REQUIRE
promises the need (`all`, or a comma-separated list), in which case the test fails: a promised machine that cannot run a
test is an error.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))


def _filesystem(name: str) -> bool:
    return any(line.split()[-1] == name for line in Path("/proc/filesystems").read_text().splitlines())


def aether_binary() -> Path | None:
    """The binary under test: $DSEC_AETHER, else the release build of this checkout."""
    named = os.environ.get("DSEC_AETHER")
    path = Path(named) if named else REPOSITORY / "target" / "release" / "aether"
    return path if path.exists() else None


NEEDS: dict[str, Callable[[], bool]] = {
    "root": lambda: os.geteuid() == 0,
    "linux": lambda: platform.system() == "Linux",
    "erofs": lambda: _filesystem("erofs"),
    "erofs-from-files": lambda: _filesystem("erofs") and _kernel() >= (6, 12),
    "overlay": lambda: _filesystem("overlay"),
    "loop": lambda: Path("/dev/loop-control").exists(),
    "btrfs": lambda: _filesystem("btrfs") and shutil.which("mkfs.btrfs") is not None,
    "aether": lambda: aether_binary() is not None,
    "mkfs.erofs": lambda: shutil.which("mkfs.erofs") is not None,
    "fsck.erofs": lambda: shutil.which("fsck.erofs") is not None,
    "mkfs.ext4": lambda: shutil.which("mkfs.ext4") is not None,
    "mmdebstrap": lambda: shutil.which("mmdebstrap") is not None,
    "cc": lambda: shutil.which("cc") is not None,
    "cgroup-v1": lambda: Path("/sys/fs/cgroup/memory/cgroup.procs").exists(),
}

# what only some machines of those promised can have: never a failure by absence under `all`
_OPTIONAL = {"cgroup-v1", "btrfs", "erofs-from-files"}


def _promised(need: str) -> bool:
    promise = os.environ.get("DSEC_TEST_REQUIRE", "")
    return need in promise.split(",") or (promise == "all" and need not in _OPTIONAL)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for need in marker.args:
            if need not in NEEDS:
                pytest.fail(f"unknown need {need!r}: see NEEDS in tests/conftest.py", pytrace=False)
            if NEEDS[need]():
                continue
            if _promised(need):
                pytest.fail(f"this machine was promised to have {need!r} and has not", pytrace=False)
            pytest.skip(f"needs {need}")
