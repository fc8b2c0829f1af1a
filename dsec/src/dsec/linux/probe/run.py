"""All trials, in order."""

from __future__ import annotations

import os
import tempfile

from libdsec.protocol.nodes import Finding

from ..removal import remove_tree
from . import control, filesystems, limits, pausing, tools
from .verdict import judge

TRIALS = (*control.TRIALS, *filesystems.TRIALS, *limits.TRIALS, *pausing.TRIALS, *tools.TRIALS)


def findings(state_dir: str | None = None) -> list[Finding]:
    """Try everything. `state_dir` is where the node keeps its state ($DSEC_STATE_DIR or /var/lib/dsec when not given):
    file systems are tried in a scratch directory in it, or beside it when it is not there yet. Takes a second or two.
    """
    asked = state_dir or os.environ.get("DSEC_STATE_DIR") or "/var/lib/dsec"
    try:
        scratch = tempfile.mkdtemp(prefix=".dsec-probe-", dir=_existing(asked))
    except OSError as error:
        remedy = "run as root, and see that the state directory is on a disk that can be written"
        return [Finding("state-directory", "missing", f"cannot write in {asked}: {error.strerror}", remedy)]
    try:
        return [judge(trial, scratch) for trial in TRIALS]
    finally:
        remove_tree(scratch)


def _existing(path: str) -> str:
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
