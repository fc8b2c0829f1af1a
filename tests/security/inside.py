"""Programs that run in a sandbox as its root, and what makes the sandboxes."""

from __future__ import annotations

from collections.abc import Callable

from libdsec import ExecResult
from libdsec.sync import Sandbox

Create = Callable[..., Sandbox]
"""Takes the arguments of `DSecContainerRunArgs`."""

_PREAMBLE = """
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *arguments) >= 0:
        return "0"
    return errno.errorcode[ctypes.get_errno()]
"""


def python(sandbox: Sandbox, source: str, *, timeout: float = 60) -> ExecResult:
    """Run a program that may use `call(number, ...)`: a system call's errno by name, "0" when it was granted."""
    return sandbox.run(["python3", "-c", _PREAMBLE + source], timeout=timeout)
