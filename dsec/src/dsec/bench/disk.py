"""What was written to a disk: the kernel's own count of sectors, the file system's journal and tables included."""

from __future__ import annotations

import os
from pathlib import Path

from libdsec.protocol.errors import UnsupportedOperationError

_SECTOR = 512
_SECTORS_WRITTEN = 6
"""The place in `/sys/dev/block/*/stat` (Documentation/block/stat.rst)."""


def written(path: Path, blocks: Path = Path("/sys/dev/block")) -> int:
    """Bytes that the disk of a path has taken since the machine started, by everybody: so first everything that waits
    in memory is written.

    :raises UnsupportedOperationError: its file system lies on no disk of its own.
    """
    device = os.stat(path).st_dev
    counters = blocks / f"{os.major(device)}:{os.minor(device)}" / "stat"
    os.sync()
    try:
        return int(counters.read_text().split()[_SECTORS_WRITTEN]) * _SECTOR
    except FileNotFoundError:
        raise UnsupportedOperationError(
            f"cannot count what is written to {path}: its file system lies on no disk of its own; see --scratch"
        ) from None
