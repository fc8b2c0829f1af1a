"""Programs of the host that are run now and then."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from .verdict import Trial

_TIMEOUT_S = 20
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _runs(*command: str) -> Callable[[str], str]:
    """Runs and says something, at best its version; how it ends differs from one version to the next."""

    def attempt(_: str) -> str:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                env={"PATH": _PATH, "LC_ALL": "C.UTF-8"},
            )
        except FileNotFoundError:
            raise RuntimeError(f"{command[0]} is not installed") from None
        lines = done.stdout.strip().splitlines()
        if not lines:
            raise RuntimeError(f"{command[0]} ended with {done.returncode} and said nothing")
        return lines[0][:120] if done.returncode == 0 else f"{command[0]} runs"

    return attempt


TRIALS = (
    Trial(
        "mmdebstrap",
        _runs("mmdebstrap", "--version"),
        "degraded",
        "install mmdebstrap to build images of releases; directories and tars need nothing",
    ),
    Trial("mkfs.ext4", _runs("mkfs.ext4", "-V"), "degraded", "install e2fsprogs for limits on disk"),
    Trial("mkfs.erofs", _runs("mkfs.erofs", "-V"), "degraded", "install erofs-utils to compare with in `dsec bench`"),
    Trial("fsck.erofs", _runs("fsck.erofs", "-V"), "degraded", "install erofs-utils to check layers with in tests"),
)
