"""A directory on a disk, and proof that a test left no mount, loop device or control group."""

import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.linux import mounts
from remains import DISK_PREFIX


@pytest.fixture
def disk() -> Iterator[Path]:
    """Not /tmp, which may be in memory: EROFS reads files of disk file systems only."""
    path = Path(tempfile.mkdtemp(prefix=DISK_PREFIX, dir="/var/tmp"))
    try:
        yield path
    finally:
        for point in reversed([line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]):
            if point.startswith(str(path)):
                mounts.umount(point, lazy=True)
        shutil.rmtree(path)


def _loops_over(directory: Path) -> list[str]:
    found = []
    for backing in glob.glob("/sys/block/loop*/loop/backing_file"):
        try:
            if Path(backing).read_text().startswith(str(directory)):
                found.append(backing)
        except OSError:
            continue
    return found


@pytest.fixture
def nothing_left(disk: Path) -> Iterator[None]:
    """Ask for it after what makes things: mounts below the directory, loop devices over it, descriptors."""
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    assert str(disk) not in Path("/proc/self/mountinfo").read_text()
    # mount namespaces that others made meanwhile hold copies for a moment
    deadline = time.monotonic() + 20
    while _loops_over(disk) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _loops_over(disk) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
