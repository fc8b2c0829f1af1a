"""The SDK of DSec: isolated, stateful sandboxes for AI agents.

    async with DSecClient() as client:
        sandbox = await client.run_container(DSecContainerRunArgs(container_image="debian:12"))
        result = await sandbox.run_shell("echo hello")
        await sandbox.stop()

A `DSecClient` holds one connection to a server (`_transport`); `Sandbox`, `Session`, `Process` and `Files` are handles
that make calls on it and keep no state of the sandbox's. `libdsec.sync` has the same names for code without an event
loop. The words that cross the wire are `libdsec.protocol`. What handles do are steps of a command log (`_steps`), and
a program that died goes on where it was: `client.attach` gives it a `Rollout`.
"""

from ._archive import Transfer
from .args import DSecContainerRunArgs
from .client import DSecClient
from .errors import CommandFailedError, DSecError
from .files import Files, Watch
from .process import Process
from .protocol.exec import ExecResult, OutputLimit
from .rollout import JobLease, Rollout
from .sandbox import Sandbox
from .session import Session

__all__ = [
    "CommandFailedError",
    "DSecClient",
    "DSecContainerRunArgs",
    "DSecError",
    "ExecResult",
    "Files",
    "JobLease",
    "OutputLimit",
    "Process",
    "Rollout",
    "Sandbox",
    "Session",
    "Transfer",
    "Watch",
]
