"""What a test needs of the machine, and what it must leave behind: nothing.

`@pytest.mark.needs("root", "erofs", ...)` names the needs of a test. A missing need skips it, unless DSEC_TEST_REQUIRE
promises the need (`all`, or a comma-separated list), in which case the test fails: a promised machine that cannot run a
test is an error.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
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


def _dsec(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dsec", *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"dsec {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def node_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A node of this test run's own, with the image of the host's distribution, as environment variables.

    Its images are kept in build/ between runs, since building one is slow; all else goes at the end.
    """
    binary = aether_binary()
    assert binary is not None, "the aether binary is missing: `make setup` builds it"
    run_dir = tmp_path_factory.mktemp("node") / "run"
    environment = {
        "DSEC_STATE_DIR": str(REPOSITORY / "build" / "test-node"),
        "DSEC_RUN_DIR": str(run_dir),
        "DSEC_AETHER": str(binary),
        "DSEC_URL": "",
    }
    _dsec(environment, "serve", "--background")
    try:
        _dsec(environment, "image", "build", "--if-missing")
        environment["DSEC_IMAGE"] = _dsec(environment, "image", "ls", "--quiet").split()[0]
        yield environment
    finally:
        _dsec(environment, "serve", "--stop")
