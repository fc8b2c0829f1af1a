"""Named points at which a process can be made to die, for tests that ask what is lost then.

`DSEC_FAULT=edge:NAME` kills the server with SIGKILL when it passes `point(NAME)`, `edge:NAME:K` at the K-th time.
(`aether:NAME` is for the binary, which has points of its own.) Without the variable a point costs one comparison.
"""

from __future__ import annotations

import os
import signal

_WHERE = "edge"


class _Armed:
    def __init__(self, text: str) -> None:
        self.name, _, count = text.partition(":")
        self.left = int(count) if count else 1


def _read() -> _Armed | None:
    where, _, rest = os.environ.get("DSEC_FAULT", "").partition(":")
    return _Armed(rest) if where == _WHERE and rest else None


_armed = _read()


def point(name: str) -> None:
    """Die here if a test wants it."""
    if _armed is not None and _armed.name == name:
        _armed.left -= 1
        if _armed.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
